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
	// trainer is the Kubeflow Trainer that runs; nil where none does.
	trainer *part
	// upgrade is the one that "cluster upgrade trainer" puts in its place; nil where there is none.
	upgrade *part
	// signalbox runs Signalbox as the integration, and as the Trainer where Kubeflow Trainer doesn't run.
	signalbox bool
	// nodes is how many real nodes there are, which Kueue, JobSet, Trainer and Signalbox then run on as pods, installed as
	// users install them. Where there are none, all are processes beside the API server, and all nodes are simulated.
	// Without Signalbox, Kueue is as its chart has it.
	nodes int
	// versions are the releases that it is made of.
	versions versions
	// relayed connects each component to the API server by a relay.
	relayed bool
}

// bundled reports whether Signalbox is the Trainer.
func (p profile) bundled() bool { return p.signalbox && p.trainer == nil }

var profiles = []profile{
	{name: "bundled", signalbox: true},
	{name: "kubeflow", trainer: &trainer, signalbox: true},
	{name: "kubeflow-2.0", trainer: &trainer20, signalbox: true},
	{name: "kubeflow-2.1", trainer: &trainer21, upgrade: &trainer, signalbox: true},
	{name: "kubeflow-2.2.0", trainer: &trainer220, signalbox: true},
	{name: "kubeflow-2.2.1", trainer: &trainer221, signalbox: true},
	{name: "builtin", builtin: true, trainer: &trainer},
	{name: "bare"},
	{name: "node", signalbox: true, nodes: 2},
	{name: "node-kubeflow", trainer: &trainer, signalbox: true, nodes: 2},
	{name: "node-bare", nodes: 2},
	{name: "node-kubeflow-bare", trainer: &trainer, nodes: 2},
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
