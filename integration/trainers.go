package integration

import (
	"github.com/signalbox-dev/signalbox/overrides"
)

// trainerOf returns the Trainer of a dialect.
func trainerOf(dialect *overrides.Dialect) Trainer {
	switch {
	case dialect == overrides.Bundled:
		return bundledTrainer{here{dialect}}
	case dialect.Keyed():
		return keyedTrainer{kubeflowTrainer{here{dialect}}}
	}
	return listTrainer{kubeflowTrainer{here{dialect}}}
}
