package main

import (
	"fmt"
	"strings"
)

const defaultProfile = "bundled"

// profile says what runs beside Kubernetes, KWOK, Kueue and JobSet.
type profile struct {
	name string
	// builtin lets Kueue's own TrainJob integration do the work; else TrainJob is an external framework.
	builtin bool
	// trainer runs Kubeflow Trainer.
	trainer bool
	// signalbox runs Signalbox as the integration, and as the Trainer where Kubeflow Trainer doesn't run.
	signalbox bool
}

// bundled tells whether Signalbox is the Trainer.
func (p profile) bundled() bool { return p.signalbox && !p.trainer }

var profiles = []profile{
	{name: "bundled", signalbox: true},
	{name: "kubeflow", trainer: true, signalbox: true},
	{name: "builtin", builtin: true, trainer: true},
}

func profileNames() []string {
	names := make([]string, 0, len(profiles))
	for _, p := range profiles {
		names = append(names, p.name)
	}
	return names
}

func profileNamed(name string) (profile, error) {
	for _, p := range profiles {
		if p.name == name {
			return p, nil
		}
	}
	return profile{}, fmt.Errorf("no profile %q; there are %s", name, strings.Join(profileNames(), ", "))
}
