// Package steps carries out what a reconcile has decided. Steps are values, so that tests compare decisions; what a
// step does is in one function of the reconciler.
package steps

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Plan is what one reconcile does.
type Plan[S any] struct {
	Steps []S
	// Again is when to reconcile next, because no event triggers it; 0 for never.
	Again time.Duration
}

// Do adds steps, which are carried out in their order.
func (p *Plan[S]) Do(steps ...S) { p.Steps = append(p.Steps, steps...) }

// Later brings the time of the next reconcile forward; 0 leaves it.
func (p *Plan[S]) Later(after time.Duration) {
	if after > 0 && (p.Again == 0 || after < p.Again) {
		p.Again = after
	}
}

// Run carries steps out by act, in their order. None depends on another: one that fails doesn't keep what stops or
// frees something from being done. A conflict is returned only if nothing worse has happened.
func Run[S any](steps []S, act func(S) error) error {
	var conflict error
	var failures []error
	for _, s := range steps {
		switch err := act(s); {
		case apierrors.IsConflict(err):
			conflict = err
		case err != nil:
			failures = append(failures, err)
		}
	}
	if len(failures) > 0 {
		return errors.Join(failures...)
	}
	return conflict
}
