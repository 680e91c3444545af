package simulate

import (
	"context"
	"testing"
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// hour has each run take an hour.
func hour(_ *kueue.Workload, since time.Time) time.Time { return since.Add(time.Hour) }

// TestAhead holds that a plan has the starts that Until forecasts, of all parts of the cluster, and preemptions.
func TestAhead(t *testing.T) {
	c := newCluster()
	c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 8})
	c.queue("other", "", nil, flavorQuota{flavor: "b", nominal: 4})
	c.runs("r", "q", "a", 5, 2, 4)
	c.waits("low", "q", 0, 2, 4)
	c.waits("lower", "q", -1, 2, 4)
	c.runs("s", "other", "b", 0, 1, 4)
	c.waits("x", "other", 0, 1, 4)
	c.waits("never", "other", 0, 1, 64)
	plan, err := Ahead(t.Context(), c, hour, noon, noon.Add(24*time.Hour))
	if err != nil || !plan.Complete {
		t.Fatal(err, plan)
	}
	starts := map[string]Turn{}
	for _, turn := range plan.Turns {
		if before, twice := starts[turn.Workload.Name]; twice {
			t.Errorf("%+v follows %+v", turn, before)
		}
		starts[turn.Workload.Name] = turn
		if turn.Admission == nil || turn.To.Sub(turn.From) != time.Hour {
			t.Errorf("%+v", turn)
		}
	}
	for _, name := range []string{"low", "lower", "x"} {
		forecast, err := Until(t.Context(), c, named(name), hour, noon)
		if err != nil || !forecast.At.Equal(starts[name].From) {
			t.Errorf("%s starts at %v, and by the plan at %v: %v", name, forecast.At, starts[name].From, err)
		}
	}
	if _, found := starts["never"]; found || len(starts) != 5 {
		t.Errorf("%+v", starts)
	}
	// One of a higher priority preempts what runs when the plan begins; that has its turn again later.
	c.waits("high", "q", 9, 2, 4)
	plan, err = Ahead(t.Context(), c, hour, noon, noon.Add(24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var turns []Turn
	for _, turn := range plan.Turns {
		if turn.Workload.Name == "r" {
			turns = append(turns, turn)
		}
	}
	if len(turns) != 2 || turns[0].By != c.Workload(named("high")).UID || !turns[0].To.Equal(noon) ||
		turns[1].By != "" ||
		!turns[1].From.Equal(noon.Add(time.Hour)) {
		t.Errorf("%+v", turns)
	}
	soon, err := Ahead(t.Context(), c, hour, noon, noon.Add(time.Minute))
	if err != nil || len(soon.Turns) >= len(plan.Turns) || !soon.Complete {
		t.Errorf("%d turns within a minute: %v", len(soon.Turns), err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if cut, err := Ahead(ended, c, hour, noon, noon.Add(time.Hour)); err != nil || cut.Complete || len(cut.Turns) == 0 {
		t.Errorf("what runs isn't in a plan without time: %+v, %v", cut, err)
	}
}

// TestAheadMoved holds that one that is preempted and gets other quota at once has two turns, and one whose LocalQueue
// leads elsewhere meanwhile has one.
func TestAheadMoved(t *testing.T) {
	c := newCluster()
	c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 8}, flavorQuota{flavor: "b", nominal: 8})
	c.queue("other", "", nil, flavorQuota{flavor: "c", nominal: 8})
	c.queue("left", "", nil, flavorQuota{flavor: "d", nominal: 8})
	c.runs("low", "q", "a", 0, 2, 4)
	c.runs("moved", "left", "d", 0, 2, 4)
	c.LocalQueues[2].Spec.ClusterQueue = "other"
	high := c.waits("high", "q", 9, 2, 4)
	high.Spec.PodSets[0].Template.Spec.NodeSelector = map[string]string{"gpu": "a"}
	plan, err := Ahead(t.Context(), c, hour, noon, noon.Add(24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	turns := map[string][]Turn{}
	for _, turn := range plan.Turns {
		turns[turn.Workload.Name] = append(turns[turn.Workload.Name], turn)
		if turn.To.IsZero() {
			t.Errorf("it has no end: %+v", turn)
		}
	}
	low := turns["low"]
	if len(low) != 2 || low[0].By != "high" || !low[0].To.Equal(noon) || low[1].By != "" || !low[1].From.Equal(noon) ||
		low[1].Admission.PodSetAssignments[0].Flavors[gpu] != "b" {
		t.Errorf("%+v", low)
	}
	if len(turns["moved"]) != 1 || len(turns["high"]) != 1 {
		t.Errorf("%+v", turns)
	}
}
