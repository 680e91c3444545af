package integration

import (
	"github.com/signalbox-dev/signalbox/overrides"
)

// trainerOf returns the Trainer of a dialect.
func trainerOf(dialect overrides.Dialect) Trainer {
	switch {
	case dialect == overrides.Bundled:
		return bundledTrainer{Dialect: dialect}
	case dialect.Keyed():
		return keyedTrainer{kubeflowTrainer{Dialect: dialect}}
	}
	return listTrainer{kubeflowTrainer{Dialect: dialect}}
}
