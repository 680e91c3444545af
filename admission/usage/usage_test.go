package usage

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

var from = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// at returns a time so many seconds after the reservation.
func at(seconds int) time.Time { return from.Add(time.Duration(seconds) * time.Second) }

// holding is a Workload that has held two GPUs since from.
func holding(change ...func(*kueue.Workload)) *kueue.Workload {
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job", UID: types.UID("uid")}}
	wl.Spec.QueueName = "queue"
	wl.Status.Conditions = []metav1.Condition{{
		Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(from),
	}}
	wl.Status.Admission = &kueue.Admission{ClusterQueue: "cq", PodSetAssignments: []kueue.PodSetAssignment{{
		Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{"nvidia.com/gpu": "a100"},
		ResourceUsage: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")},
	}}}
	for _, c := range change {
		c(wl)
	}
	return wl
}

func noted(running time.Time, run ...time.Time) func(*kueue.Workload) {
	return func(wl *kueue.Workload) {
		n := Note{Team: "vision", User: "ann", Run: from, Running: running}
		if len(run) > 0 {
			n.Run = run[0]
		}
		wl.Annotations = map[string]string{Annotation: n.String()}
	}
}

// TestSplit holds for what a run of 100 s counts, of two GPUs.
func TestSplit(t *testing.T) {
	saved := func(seconds int) Facts { return Facts{Reports: true, Saved: at(seconds)} }
	for name, c := range map[string]struct {
		reason string
		wl     *kueue.Workload
		facts  Facts
		want   usageapi.Held // in seconds of two GPUs
	}{
		"no pod ran": {"it only held quota", holding(), Facts{}, usageapi.Held{Idle: 100}},
		"nothing reported": {"nobody knows what was saved", holding(noted(at(10))), Facts{},
			usageapi.Held{Idle: 10, Unknown: 90}},
		"succeeded": {"all was useful", holding(noted(at(10))), Facts{Succeeded: true},
			usageapi.Held{Idle: 10, Useful: 90}},
		"succeeded before its pods were seen": {"they have run", holding(), Facts{Succeeded: true},
			usageapi.Held{Useful: 100}},
		"succeeded, and released later": {"no pod ran at the end", holding(noted(at(10))),
			Facts{Succeeded: true, Ended: at(80)}, usageapi.Held{Idle: 30, Useful: 70}},
		"saved": {"what follows is lost", holding(noted(at(10))), saved(60),
			usageapi.Held{Idle: 10, Useful: 50, Lost: 40}},
		"saved, and failed": {"no pod ran at the end", holding(noted(at(10))),
			Facts{Reports: true, Saved: at(60), Ended: at(90)}, usageapi.Held{Idle: 20, Useful: 50, Lost: 30}},
		"saved before its pods were seen": {"they have run", holding(), saved(60), usageapi.Held{Useful: 60, Lost: 40}},
		"saved in an earlier run": {"nothing of this one is", holding(noted(at(10))), saved(-50),
			usageapi.Held{Idle: 10, Lost: 90}},
		"saved after the end":     {"clocks differ", holding(noted(at(10))), saved(500), usageapi.Held{Idle: 10, Useful: 90}},
		"ran before it had quota": {"clocks differ", holding(noted(at(-10))), saved(60), usageapi.Held{Useful: 60, Lost: 40}},
		"ran after the end":       {"clocks differ", holding(noted(at(200))), Facts{}, usageapi.Held{Idle: 100}},
		"ended before it ran":     {"clocks differ", holding(noted(at(50))), Facts{Ended: at(20)}, usageapi.Held{Idle: 100}},
		"noted of an earlier run": {"the note isn't of this one", holding(noted(at(-10), at(-20))), Facts{},
			usageapi.Held{Idle: 100}},
		"a note that isn't one": {"it says nothing", holding(func(wl *kueue.Workload) {
			wl.Annotations = map[string]string{Annotation: "{"}
		}), Facts{}, usageapi.Held{Idle: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.wl.DeepCopy()
			r := RunOf(c.wl, c.facts, at(100))
			rows := r.Split(r.From, r.Until)
			if len(rows) != 1 || rows[0].Flavor != "a100" || rows[0].Resource != "nvidia.com/gpu" {
				t.Fatalf("got %v", rows)
			}
			want := usageapi.Held{Useful: c.want.Useful * 2000, Lost: c.want.Lost * 2000, Idle: c.want.Idle * 2000,
				Unknown: c.want.Unknown * 2000}
			if rows[0].Held != want {
				t.Errorf("%s: got %+v, want %+v", c.reason, rows[0].Held, want)
			}
			if !equality.Semantic.DeepEqual(before, c.wl) {
				t.Error("the Workload has changed")
			}
		})
	}
}

// TestRunOf holds of whom a run is, and that a Workload without quota has none.
func TestRunOf(t *testing.T) {
	r := RunOf(holding(noted(at(10))), Facts{}, at(100))
	if r.Team != "vision" || r.User != "ann" || r.Namespace != "team" || r.Queue != "queue" || r.ClusterQueue != "cq" ||
		r.Key != "uid/2026-11-28T12:00:00Z" {
		t.Errorf("got %+v", r)
	}
	if !Began(holding(noted(at(10)))) || Began(holding()) || Began(holding(noted(at(10), at(-5)))) {
		t.Error("its pods began")
	}
	for name, wl := range map[string]*kueue.Workload{
		"no condition": {},
		"no admission": holding(func(wl *kueue.Workload) { wl.Status.Admission = nil }),
		"released":     holding(func(wl *kueue.Workload) { wl.Status.Conditions[0].Status = metav1.ConditionFalse }),
		"finished": holding(func(wl *kueue.Workload) {
			wl.Status.Conditions = append(wl.Status.Conditions,
				metav1.Condition{Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue})
		}),
	} {
		if r := RunOf(wl, Facts{}, at(100)); r != nil {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}

// TestReplaced holds that a Workload which another has replaced has held quota until then, whenever that is recorded,
// and that it isn't counted once more after the other.
func TestReplaced(t *testing.T) {
	wl := holding(noted(at(10)))
	before := Key(wl)
	wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadFinished,
		Status: metav1.ConditionTrue, Reason: kueue.WorkloadSliceReplaced, LastTransitionTime: metav1.NewTime(at(60))})
	r := RunOf(wl, Facts{Reports: true, Saved: at(90)}, at(100))
	if r == nil || r.Key != before || !r.Until.Equal(at(60)) || !r.Saved.Equal(at(60)) || !Reserved(wl).Equal(from) {
		t.Fatalf("got %+v", r)
	}
	slice := holding(func(wl *kueue.Workload) { wl.UID = "slice" })
	slice.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at(60))
	first := Count(nil, r)
	both := Count(first, RunOf(slice, Facts{}, at(100)))
	if first.Runs != 1 || both.Runs != 2 {
		t.Errorf("got %+v, then %+v", first, both)
	}
	if again := Count(both, r); !equality.Semantic.DeepEqual(again, both) {
		t.Errorf("it counts again: %+v", again)
	}
}

// TestReleases holds that a write which says nothing of the quota releases none.
func TestReleases(t *testing.T) {
	condition := func(name string, status metav1.ConditionStatus) *kueue.Workload {
		wl := &kueue.Workload{}
		wl.Status.Conditions = []metav1.Condition{{Type: name, Status: status}}
		return wl
	}
	replaced := condition(kueue.WorkloadFinished, metav1.ConditionTrue)
	replaced.Status.Conditions[0].Reason = kueue.WorkloadSliceReplaced
	for name, c := range map[string]struct {
		sent *kueue.Workload
		want bool
	}{
		"replaced":          {replaced, false}, // it is recorded before it is deleted
		"another condition": {condition(kueue.WorkloadPodsReady, metav1.ConditionTrue), false},
		"still reserved":    {condition(kueue.WorkloadQuotaReserved, metav1.ConditionTrue), false},
		"not any more":      {condition(kueue.WorkloadQuotaReserved, metav1.ConditionFalse), true},
		"finished":          {condition(kueue.WorkloadFinished, metav1.ConditionTrue), true},
	} {
		if got := Releases(c.sent); got != c.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// TestSpans holds that the days of a run, in UTC, follow each other without a gap.
func TestSpans(t *testing.T) {
	r := RunOf(holding(), Facts{}, from.Add(36*time.Hour).In(time.FixedZone("east", 9*3600)))
	spans := r.Spans()
	if len(spans) != 2+1-1 || spans[0].Day != "2026-11-28" || spans[1].Day != "2026-11-29" {
		t.Fatalf("got %v", spans)
	}
	if r = RunOf(holding(), Facts{}, from.Add(-time.Hour)); len(r.Spans()) != 1 || !r.Until.Equal(from) {
		t.Errorf("a run that ends before it began: got %+v", r.Spans())
	}
	if r = RunOf(holding(), Facts{}, from.AddDate(100, 0, 0)); len(r.Spans()) > 367 {
		t.Errorf("a clock that is a century ahead costs %d records", len(r.Spans()))
	}
}

// TestAmounts holds in which unit resources are counted, and that nothing overflows.
func TestAmounts(t *testing.T) {
	const second = time.Second
	for name, c := range map[string]struct {
		resource, quantity string
		held               time.Duration
		want               int64
	}{
		"GPUs":           {"nvidia.com/gpu", "8", second, 8000},
		"cores":          {"cpu", "1500m", 2 * second, 3000},
		"less than one":  {"cpu", "1m", second, 1},
		"GiB":            {"memory", "1536Mi", 2 * second, 3000},
		"huge pages":     {"hugepages-2Mi", "1Gi", second, 1000},
		"a disk":         {"ephemeral-storage", "10Gi", second, 10000},
		"a million":      {"nvidia.com/gpu", "1M", 366 * 24 * time.Hour, 31_622_400_000_000_000},
		"more than fits": {"example.com/things", "9E", 366 * 24 * time.Hour, math.MaxInt64},
		"beyond that":    {"example.com/things", "1000E", second, math.MaxInt64},
		"all memory":     {"memory", "7Ei", 24 * time.Hour, 649_399_055_155_200_000},
		"negative":       {"cpu", "-1", second, 0},
	} {
		wl := holding(func(wl *kueue.Workload) {
			a := &wl.Status.Admission.PodSetAssignments[0]
			a.Flavors = map[corev1.ResourceName]kueue.ResourceFlavorReference{corev1.ResourceName(c.resource): "a100"}
			a.ResourceUsage = corev1.ResourceList{corev1.ResourceName(c.resource): resource.MustParse(c.quantity),
				"uncounted": resource.MustParse("1")}
		})
		r := RunOf(wl, Facts{}, from.Add(c.held))
		if got := r.Split(r.From, r.Until); len(got) != 1 || got[0].Idle != c.want {
			t.Errorf("%s: got %+v, want %d", name, got, c.want)
		}
	}
	most := usageapi.Held{Useful: math.MaxInt64, Lost: math.MaxInt64, Idle: 1, Unknown: 1}
	if sum := Plus(most, most); sum.Useful != math.MaxInt64 || sum.Idle != 2 || Total(sum) != math.MaxInt64 {
		t.Errorf("got %+v", sum)
	}
}

// TestSumsHold is a property: whatever the clocks say, and however a run is cut into pieces, nothing is negative, and
// the parts of the pieces add up to what was held.
func TestSumsHold(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	any := func() time.Time {
		return from.Add(time.Duration(random.Int64N(int64(200*time.Hour)) - int64(20*time.Hour)))
	}
	for range 2000 {
		quantity := *resource.NewMilliQuantity(random.Int64N(1e7), resource.DecimalSI)
		wl := holding(noted(any()), func(wl *kueue.Workload) {
			wl.Status.Admission.PodSetAssignments[0].ResourceUsage["nvidia.com/gpu"] = quantity
		})
		facts := Facts{Reports: random.IntN(2) == 0, Succeeded: random.IntN(2) == 0, Saved: any(), Ended: any()}
		r := RunOf(wl, facts, any())
		var sum usageapi.Held
		last := r.From
		for _, span := range r.Spans() {
			cut := span.From.Add(time.Duration(random.Int64N(int64(span.Until.Sub(span.From)) + 1)))
			if !span.From.Equal(last) || DayOf(span.From) != span.Day {
				t.Fatalf("a gap: %v after %v", span, last)
			}
			last = span.Until
			for _, s := range append(r.Split(span.From, cut), r.Split(cut, span.Until)...) {
				if s.Useful < 0 || s.Lost < 0 || s.Idle < 0 || s.Unknown < 0 {
					t.Fatalf("negative: %+v of %+v", s, r)
				}
				sum = Plus(sum, s.Held)
			}
		}
		want := quantity.MilliValue() * r.Until.Sub(r.From).Milliseconds() / 1000
		if !last.Equal(r.Until) || Total(sum) != want {
			t.Fatalf("got %d, want %d of %+v", Total(sum), want, r)
		}
		if whole := r.Split(r.From, r.Until); len(whole) > 0 && whole[0].Held != sum {
			t.Fatalf("the pieces are %+v, and the whole %+v", sum, whole[0].Held)
		}
	}
}

// TestCount holds that a TrainJob's runs are added up, each once.
func TestCount(t *testing.T) {
	first := RunOf(holding(noted(at(10))), Facts{}, at(50))
	longer := RunOf(holding(noted(at(10))), Facts{}, at(60))
	next := RunOf(holding(func(wl *kueue.Workload) {
		wl.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at(100))
	}), Facts{}, at(105))
	u := Count(Count(Count(Count(nil, first), first), longer), first)
	before := u.DeepCopy()
	u = Count(u, next)
	if !equality.Semantic.DeepEqual(before, Count(before, longer)) || before.Runs != 1 ||
		before.Resources[0].Idle != 20_000 || before.Resources[0].Unknown != 100_000 {
		t.Errorf("one run: got %+v", before)
	}
	if u.Runs != 2 || len(u.Resources) != 1 || u.Resources[0].Idle != 30_000 || u.Run != next.Key {
		t.Errorf("two runs: got %+v", u)
	}
}

// TestFitting holds that a long text is cut to what fits, and stays another than others that begin alike.
func TestFitting(t *testing.T) {
	long := strings.Repeat("ü", 200)
	for name, c := range map[string]struct {
		text string
		most int
		same bool
	}{
		"short":          {"ann", 38, true},
		"as long as may": {strings.Repeat("a", 38), 38, true},
		"long":           {long, MaxText, false},
		"cut at a dash":  {strings.Repeat("a", 20) + "-" + long, 38, false},
	} {
		got, other := Fitting(c.text, c.most), Fitting(c.text+"x", c.most)
		if len(got) > c.most || !utf8.ValidString(got) || (got == c.text) != c.same || !c.same && got == other ||
			strings.Contains(got, "--") {
			t.Errorf("%s: got %q, and %q for another", name, got, other)
		}
	}
}

// TestCopies holds that a change of a copied record, or of a list of them, doesn't change the record: caches share it.
func TestCopies(t *testing.T) {
	record := usageapi.QuotaUsage{
		Queue: "queue", Rows: []usageapi.Row{{User: "ann", Held: usageapi.Held{Useful: 1}}},
		Recent: []usageapi.Recorded{{Run: "uid"}},
	}
	list := &usageapi.QuotaUsageList{Items: []usageapi.QuotaUsage{record}}
	copied := list.DeepCopyObject().(*usageapi.QuotaUsageList)
	for _, c := range []*usageapi.QuotaUsage{&copied.Items[0], record.DeepCopyObject().(*usageapi.QuotaUsage)} {
		if !equality.Semantic.DeepEqual(c, &record) {
			t.Errorf("got %+v, want %+v", c, record)
		}
		c.Rows[0], c.Recent[0] = *c.Rows[0].DeepCopy(), *c.Recent[0].DeepCopy()
		c.Rows[0].Held = *c.Rows[0].Held.DeepCopy()
		c.Rows[0].Useful, c.Recent[0].Run = 2, "another"
	}
	if (*usageapi.QuotaUsage)(nil).DeepCopyObject() != nil || (*usageapi.QuotaUsageList)(nil).DeepCopyObject() != nil {
		t.Error("a copy of nothing is something")
	}
	if record.Rows[0].Useful != 1 || record.Recent[0].Run != "uid" || list.Items[0].Rows[0].Useful != 1 {
		t.Errorf("the record has changed: %+v", record)
	}
}
