package steps

import (
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRun(t *testing.T) {
	conflict, broken := apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("changed")), errors.New("broken")
	for name, c := range map[string]struct {
		reason string
		errs   []error
		want   error
	}{
		"all succeed": {"there is nothing to return", []error{nil, nil}, nil},
		"one fails":   {"the next is carried out all the same", []error{broken, nil}, broken},
		"a conflict":  {"the caller tries again", []error{conflict, nil}, conflict},
		"both":        {"the failure is worse", []error{conflict, broken}, broken},
	} {
		t.Run(name, func(t *testing.T) {
			var done []int
			err := Run([]int{0, 1}, func(step int) error {
				done = append(done, step)
				return c.errs[step]
			})
			if !slices.Equal(done, []int{0, 1}) || !errors.Is(err, c.want) ||
				apierrors.IsConflict(err) != apierrors.IsConflict(c.want) {
				t.Errorf("%s: carried out %v, got %v, want %v", c.reason, done, err, c.want)
			}
		})
	}
}

func TestPlan(t *testing.T) {
	var p Plan[string]
	p.Do("a", "b")
	p.Do("c")
	for _, after := range []time.Duration{0, 3, 2, 0, 4} {
		p.Later(after)
	}
	if !slices.Equal(p.Steps, []string{"a", "b", "c"}) || p.Again != 2 {
		t.Errorf("steps keep their order, and the soonest time counts: got %+v", p)
	}
}
