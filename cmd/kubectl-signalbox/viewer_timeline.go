package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/usage"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/podsets"
)

// horizons are how many hours back and ahead can be shown.
var horizons = [][2]int{{1, 2}, {6, 12}, {24, 48}, {7 * 24, 7 * 24}}

// mostLanes is how many TrainJobs of a flavor are shown.
const mostLanes = 60

// timeline shows what ran, runs and will run on each flavor.
func (v *viewer) timeline(_ context.Context, k *known, r serve.Request) (serve.Answer, error) {
	now := time.Now()
	view := page.Line{Known: true}
	view.Back, view.Ahead = horizons[1][0], horizons[1][1]
	for _, h := range horizons {
		if r.Values.Get("hours") == strconv.Itoa(h[1]) {
			view.Back, view.Ahead = h[0], h[1]
		}
	}
	for _, h := range horizons {
		view.Choices = append(view.Choices, page.Choice{
			Text:   fmt.Sprintf("%s back, %s ahead", hours(h[0]), hours(h[1])),
			Href:   page.Link("/timeline", "hours", strconv.Itoa(h[1])),
			Chosen: h[1] == view.Ahead,
		})
	}
	shift, err := strconv.ParseFloat(r.Values.Get("shift"), 64)
	if err != nil || math.IsNaN(shift) {
		shift = 0
	}
	shift = min(max(shift, -50), 50)
	of := time.Duration(view.Back+view.Ahead) * time.Hour
	by := time.Duration(shift * float64(of)).Truncate(time.Minute)
	if shift != 0 {
		view.Choices = append(view.Choices,
			page.Choice{Text: "now", Href: page.Link("/timeline", "hours", strconv.Itoa(view.Ahead))})
	}
	minute := now.Truncate(time.Minute) // the view changes once a minute if nothing else does
	view.Axis = page.Axis{From: minute.Add(by - time.Duration(view.Back)*time.Hour),
		To: minute.Add(by + time.Duration(view.Ahead)*time.Hour), Now: minute}
	lanes := newLanes(k, view.Axis)
	lanes.addPast(now)
	switch p := v.planner.plan(k, &v.changes); {
	case p == nil:
		view.Known, view.Why = false, "it is being computed"
	case p.why != "":
		view.Known, view.Why = false, p.why
	default:
		lanes.addPlan(p)
		view.Incomplete = !p.mid.Complete
	}
	view.Timelines = lanes.timelines()
	return shows("Timeline", k.missing, view), nil
}

func hours(n int) string {
	switch {
	case n == 1:
		return "1 hour"
	case n%24 == 0 && n > 24:
		return strconv.Itoa(n/24) + " days"
	}
	return strconv.Itoa(n) + " hours"
}

// lanes gathers the spans of Workloads by flavor.
type lanes struct {
	*known
	page.Axis
	of map[string]map[types.NamespacedName]*page.Lane
	// names are the Workloads by their UIDs.
	names map[types.UID]string
}

func newLanes(k *known, axis page.Axis) *lanes {
	l := &lanes{
		known: k,
		Axis:  axis,
		of:    map[string]map[types.NamespacedName]*page.Lane{},
		names: map[types.UID]string{},
	}
	for i := range k.Workloads {
		l.names[k.Workloads[i].UID] = k.Workloads[i].Namespace + "/" + simulate.Owner(&k.Workloads[i])
	}
	return l
}

// add adds a span to the lanes of a Workload, on the flavors of an admission.
func (l *lanes) add(wl *kueue.Workload, flavors []string, s page.Span) {
	if s.To.Before(l.From) || s.From.After(l.To) {
		return
	}
	for _, flavor := range flavors {
		if l.of[flavor] == nil {
			l.of[flavor] = map[types.NamespacedName]*page.Lane{}
		}
		key := client.ObjectKeyFromObject(wl)
		lane := l.of[flavor][key]
		if lane == nil {
			lane = &page.Lane{Name: wl.Namespace + "/" + simulate.Owner(wl)}
			if job := l.jobOf(wl); job != nil {
				lane.Href = page.JobPath(job.Namespace, job.Name)
			}
			l.of[flavor][key] = lane
		}
		lane.Spans = append(lane.Spans, s)
	}
}

// addPast adds what conditions show: they have the last run of each Workload, and its last preemption.
func (l *lanes) addPast(now time.Time) {
	for i := range l.Workloads {
		wl := &l.Workloads[i]
		name := wl.Namespace + "/" + simulate.Owner(wl)
		from := usage.Reserved(wl)
		if c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPreempted); c != nil &&
			c.Status == "True" && wl.Status.Admission == nil {
			l.addPreemption(wl, c.LastTransitionTime.Time, string(simulate.Preemptor(c.Message)), c.Reason)
		}
		if wl.Status.Admission == nil || from.IsZero() {
			continue
		}
		s := page.Span{
			Class: "runs",
			From:  from,
			To:    now,
			Title: name + " runs since " + from.UTC().Format(time.DateTime) + " UTC",
		}
		if c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished); isFinished(wl) && c != nil {
			s.Class, s.To = "past", c.LastTransitionTime.Time
			s.Title = fmt.Sprintf("%s ran for %s", name, s.To.Sub(from).Round(time.Second))
		}
		l.add(wl, podsets.Flavors(wl), s)
	}
}

// addPreemption marks when one that waits again was preempted, and for whom. Where it ran is no longer known.
func (l *lanes) addPreemption(wl *kueue.Workload, at time.Time, by, why string) {
	preemptor := cmp.Or(l.names[types.UID(by)], "another Workload")
	flavors := sets.New[string]()
	for i := range l.Workloads {
		if other := &l.Workloads[i]; string(other.UID) == by && other.Status.Admission != nil {
			flavors.Insert(podsets.Flavors(other)...)
		}
	}
	text := fmt.Sprintf("%s/%s was preempted for %s (%s)", wl.Namespace, simulate.Owner(wl), preemptor, why)
	l.add(wl, sets.List(flavors), page.Span{Class: "past", From: at, To: at, Title: text, Break: text})
}

// addPlan adds what is expected.
func (l *lanes) addPlan(p *plans) {
	low, high := firstTurns(p.low), firstTurns(p.high)
	workloads := map[types.NamespacedName]*kueue.Workload{}
	for i := range l.Workloads {
		workloads[client.ObjectKeyFromObject(&l.Workloads[i])] = &l.Workloads[i]
	}
	for _, turn := range p.mid.Turns {
		wl := workloads[turn.Workload]
		if wl == nil {
			continue
		}
		name := wl.Namespace + "/" + simulate.Owner(wl)
		s := page.Span{
			Class: "will",
			From:  turn.From,
			To:    turn.To,
			Title: name + " is expected to end at " + utc(turn.To),
		}
		if turn.From.Before(p.at) {
			s.From = p.at // until then it is drawn as what runs
		} else {
			s.Title = fmt.Sprintf("%s is expected to run from %s to %s", name, utc(turn.From), utc(turn.To))
			earliest, latest := low[turn.Workload], high[turn.Workload]
			if first := p.starts[turn.Workload]; first.Equal(turn.From) && !earliest.IsZero() && latest.After(earliest) {
				l.add(wl, flavorsOn(turn.Admission), page.Span{Class: "wait", From: earliest, To: latest,
					Title: fmt.Sprintf("%s may start between %s and %s", name, utc(earliest), utc(latest))})
			}
		}
		if turn.By != "" {
			s.Break = fmt.Sprintf("%s is expected to be preempted for %s at %s", name,
				cmp.Or(l.names[turn.By], "another Workload"), utc(turn.To))
			s.Title = s.Break
		}
		l.add(wl, flavorsOn(turn.Admission), s)
	}
}

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") + " UTC" }

// firstTurns returns when each Workload of a plan first has quota.
func firstTurns(p *simulate.Plan) map[types.NamespacedName]time.Time {
	first := map[types.NamespacedName]time.Time{}
	for _, turn := range p.Turns {
		if _, known := first[turn.Workload]; !known {
			first[turn.Workload] = turn.From
		}
	}
	return first
}

// flavorsOn returns the flavors of an admission.
func flavorsOn(a *kueue.Admission) []string {
	flavors, _ := admissionOf(a)
	return sets.List(sets.New(slices.Collect(maps.Values(flavors))...))
}

// nearest returns the lanes with what is nearest to now, in their order.
func (l *lanes) nearest(all []page.Lane) []page.Lane {
	away := func(lane *page.Lane) time.Duration {
		least := time.Duration(math.MaxInt64)
		for _, s := range lane.Spans {
			least = min(least, max(s.From.Sub(l.Now), l.Now.Sub(s.To), 0))
		}
		return least
	}
	near := slices.Clone(all)
	slices.SortStableFunc(near, func(a, b page.Lane) int { return cmp.Compare(away(&a), away(&b)) })
	last := away(&near[mostLanes-1])
	near = slices.DeleteFunc(all, func(lane page.Lane) bool { return away(&lane) > last })
	return near[:mostLanes]
}

// timelines returns the lanes of each flavor, those that begin first first.
func (l *lanes) timelines() []page.Timeline {
	var all []page.Timeline
	for _, flavor := range slices.Sorted(maps.Keys(l.of)) {
		t := page.Timeline{Flavor: flavor}
		for _, lane := range l.of[flavor] {
			slices.SortStableFunc(lane.Spans, func(a, b page.Span) int {
				return a.From.Compare(b.From)
			})
			t.Lanes = append(t.Lanes, *lane)
		}
		slices.SortFunc(t.Lanes, func(a, b page.Lane) int {
			return cmp.Or(a.Spans[0].From.Compare(b.Spans[0].From), cmp.Compare(a.Name, b.Name))
		})
		if t.More = max(len(t.Lanes)-mostLanes, 0); t.More > 0 {
			t.Lanes = l.nearest(t.Lanes)
		}
		all = append(all, t)
	}
	return all
}
