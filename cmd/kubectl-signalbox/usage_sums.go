package main

import (
	"encoding/csv"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/usage"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// usageOptions are the flags of usage.
type usageOptions struct {
	all    bool
	since  string
	by     []string
	output string
}

// dimensions are what usage can be added up by, besides the resource.
var dimensions = []string{"queue", "team", "user", "day", "flavor"}

// usageKey is whose usage is added up; what it isn't added up by is empty.
type usageKey struct {
	Namespace string    `json:"namespace,omitempty"`
	Queue     string    `json:"queue,omitempty"`
	Team      string    `json:"team,omitempty"`
	User      string    `json:"user,omitempty"`
	Day       usage.Day `json:"day,omitempty"`
	Flavor    string    `json:"flavor,omitempty"`
	Resource  string    `json:"resource"`
}

// usageRow is a sum, in seconds of a unit.
type usageRow struct {
	usageKey
	Useful  float64 `json:"useful"`
	Lost    float64 `json:"lost"`
	Idle    float64 `json:"idle"`
	Unknown float64 `json:"unknown"`
}

// sums adds up what was used since a day.
type sums struct {
	usageOptions
	first usage.Day
	of    map[usageKey]usage.Parts
}

func newSums(o usageOptions, first usage.Day) *sums {
	return &sums{o, first, map[usageKey]usage.Parts{}}
}

// add adds a part to the sums, if it isn't of an earlier day.
func (s *sums) add(k usageKey, p usage.Parts) {
	if k.Day < s.first || p == (usage.Parts{}) {
		return
	}
	for name, field := range map[string]*string{
		"queue": &k.Queue, "team": &k.Team, "user": &k.User, "flavor": &k.Flavor,
	} {
		if !slices.Contains(s.by, name) {
			*field = ""
		}
	}
	if !slices.Contains(s.by, "day") {
		k.Day = ""
	}
	if !s.all || !slices.Contains(s.by, "queue") {
		k.Namespace = ""
	}
	s.of[k] = s.of[k].Plus(p)
}

func (s *sums) addRecords(records []usageapi.QuotaUsage) {
	for i := range records {
		r := &records[i]
		for _, row := range r.Rows {
			s.add(usageKey{r.Namespace, r.Queue, row.Team, row.User, usage.Day(r.Day), row.Flavor, row.Resource},
				usage.Parts(row.Held))
		}
	}
}

// addRunning adds what runs now and isn't in the records: what of it is useful isn't decided yet.
func (s *sums) addRunning(workloads []kueue.Workload, records []usageapi.QuotaUsage, now time.Time) {
	recorded := map[string]time.Time{}
	for i := range records {
		for _, r := range records[i].Recent {
			if r.Until.After(recorded[r.Run]) {
				recorded[r.Run] = r.Until.Time
			}
		}
	}
	for i := range workloads {
		wl := &workloads[i]
		owner := metav1.GetControllerOfNoCopy(wl)
		if owner == nil || owner.Kind != trainerapi.TrainJobKind || wl.Status.ClusterName != nil {
			continue // no TrainJob's, or counted where it runs
		}
		run := usage.RunOf(wl, usage.Facts{}, now)
		if run == nil {
			continue
		}
		for _, span := range run.Spans() {
			from := span.From
			if until := recorded[run.Key]; until.After(from) {
				from = until
			}
			for _, share := range run.Split(from, span.Until) {
				s.add(usageKey{run.Namespace, run.Queue, run.Team, run.User, span.Day, share.Flavor, share.Resource}, share.Parts)
			}
		}
	}
}

// columns are the titles of what is added up by, with how a key says it.
func (s *sums) columns() (titles []string, cells []func(usageKey) string) {
	if s.all && slices.Contains(s.by, "queue") {
		titles, cells = append(titles, "NAMESPACE"), append(cells, func(k usageKey) string { return k.Namespace })
	}
	by := map[string]func(usageKey) string{
		"queue": func(k usageKey) string { return k.Queue }, "team": func(k usageKey) string { return k.Team },
		"user": func(k usageKey) string { return k.User }, "day": func(k usageKey) string { return string(k.Day) },
		"flavor": func(k usageKey) string { return k.Flavor },
	}
	for _, name := range s.by {
		titles, cells = append(titles, strings.ToUpper(name)), append(cells, by[name])
	}
	return append(titles, "RESOURCE"), append(cells, func(k usageKey) string { return k.Resource })
}

// sorted returns the keys in the order of their columns.
func (s *sums) sorted() []usageKey {
	_, cells := s.columns()
	return slices.SortedFunc(maps.Keys(s.of), func(a, b usageKey) int {
		for _, cell := range cells {
			if c := strings.Compare(cell(a), cell(b)); c != 0 {
				return c
			}
		}
		return 0
	})
}

// print writes the sums in the format that was asked for.
func (s *sums) print(to *session) error {
	keys, out := s.sorted(), to.streams.Out
	if s.output == "json" {
		rows := make([]usageRow, 0, len(keys))
		for _, k := range keys {
			p := s.of[k]
			rows = append(rows, usageRow{k, seconds(p.Useful), seconds(p.Lost), seconds(p.Idle), seconds(p.Unknown)})
		}
		return printAs(out, "json", rows)
	}
	titles, cells := s.columns()
	titles = append(titles, "USEFUL", "LOST", "IDLE", "UNKNOWN", "TOTAL")
	show := func(amount int64) string { return strconv.FormatFloat(seconds(amount)/3600, 'f', 1, 64) }
	none := orNone
	if s.output == "csv" {
		show = func(amount int64) string { return strconv.FormatFloat(seconds(amount), 'f', 3, 64) }
		none = func(text string) string { return text }
	}
	rows := make([][]string, 0, len(keys))
	for _, k := range keys {
		var row []string
		for _, cell := range cells {
			row = append(row, none(cell(k)))
		}
		p := s.of[k]
		for _, amount := range []int64{p.Useful, p.Lost, p.Idle, p.Unknown, p.Total()} {
			row = append(row, show(amount))
		}
		rows = append(rows, row)
	}
	if s.output == "csv" {
		for i := range titles {
			titles[i] = strings.ToLower(titles[i])
		}
		return csv.NewWriter(out).WriteAll(append([][]string{titles}, rows...))
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(to.streams.ErrOut, "Nothing was used since "+string(s.first)+".")
		return err
	}
	return table(out, titles, rows)
}

func seconds(amount int64) float64 { return float64(amount) / 1000 }
