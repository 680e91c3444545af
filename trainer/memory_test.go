package trainer

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestRecall(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	m := newMemory()
	waited := func(name string) (time.Duration, int) {
		p := m.recall(types.NamespacedName{Name: name}, clk.Now(), true, false)
		return clk.Since(p.since), p.others
	}
	for _, name := range []string{"a", "b", "c"} {
		waited(name)
	}
	clk.Step(time.Second)
	waited("a")
	m.written(types.NamespacedName{Name: "b"})
	m.written(types.NamespacedName{Name: "c"})
	clk.Step(time.Second)
	if waited, others := waited("a"); waited != 2*time.Second || others != 2 {
		t.Errorf("a crowd that gets less is still one: got %v and %d others, want 2s and 2", waited, others)
	}
	m.written(types.NamespacedName{Name: "a"})
	if waited, others := waited("a"); waited != 0 || others != 0 {
		t.Errorf("what was written has waited: got %v and %d others, want 0s and 0", waited, others)
	}
}
