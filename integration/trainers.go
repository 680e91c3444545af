package integration

import (
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

// trainerOf returns the Trainer of a dialect.
func trainerOf(dialect *overrides.Dialect) Trainer {
	if dialect == overrides.Bundled {
		t := bundledTrainer{here{dialect}}
		return Trainer{dialect, traits{ways: []string{oneWrite}, hasState: true, deletesJobSet: true, quiet: true,
			guarded: ownAnnotations}, t, t, t, t}
	}
	kubeflow := kubeflowTrainer{here{dialect}}
	facts := traits{ways: []string{oneWrite, twoWrites}, guarded: ownAnnotations}
	if dialect.Keyed() {
		return Trainer{dialect, facts, kubeflow, kubeflow, keyedTrainer{kubeflow}, keyedTrainer{kubeflow}}
	}
	facts.guarded = []string{store.PinAnnotation}
	return Trainer{dialect, facts, kubeflow, kubeflow, listTrainer{kubeflow}, listTrainer{kubeflow}}
}
