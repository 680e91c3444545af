package main

import (
	"fmt"
	"slices"
	"strings"
)

// pinned is a release of a program that a control plane can be made of.
type pinned struct {
	// name is its first two numbers, by which it is asked for.
	name string
	// version is of its Go module.
	version string
	// module is the folder under components/ whose go.mod pins it.
	module string
}

// kubernetes is a release of Kubernetes, and what it takes to serve Workloads and PodGroups.
type kubernetes struct {
	pinned
	// podGroups is the version of their API; gates are those of every component of Kubernetes that has a part in it. Both
	// are empty where it has none that kube-scheduler acts on. (An unknown gate stops a component.)
	podGroups, gates string
	// moreGates and moreAPIs are those that were asked for.
	moreGates, moreAPIs string
}

// All that can be had; the default is the one whose module is named after no version.
var (
	kubernetesReleases = []kubernetes{
		{pinned: pinned{"1.34", "v1.34.8", "kubernetes-1.34"}},
		{pinned: pinned{"1.35", "v1.35.5", "kubernetes-1.35"}},
		{pinned: pinned{"1.36", "v1.36.3", "kubernetes"},
			podGroups: "v1alpha2", gates: "GenericWorkload=true,GangScheduling=true"},
		{pinned: pinned{"1.37", "v1.37.2", "kubernetes-1.37"}, podGroups: "v1beta1", gates: "GenericWorkload=true"},
	}
	kueueReleases = []pinned{
		{"0.17", "v0.17.1", "kueue-0.17"}, {"0.18", "v0.18.4", "kueue-0.18"}, {"0.19", "v0.19.2", defaultModule},
	}
	jobsetReleases = []pinned{
		{"0.10", "v0.10.1", "jobset-0.10"}, {"0.11", "v0.11.1", "jobset-0.11"}, {"0.12", "v0.12.0", defaultModule},
	}
)

// defaultModule has the default release of Kubernetes, Kueue and JobSet, and Kubeflow Trainer's last.
const defaultModule = "kubernetes"

// versions are the releases of one control plane.
type versions struct {
	kubernetes kubernetes
	// next is what "cluster upgrade kubernetes" puts in the place of kubernetes.
	next          *kubernetes
	kueue, jobset pinned
}

// asked are the releases that the flags name; "" is the default, and for next none. gates and apis are further feature
// gates and versions of APIs that Kubernetes is to have, such as "CompositePodGroup=true" and
// "scheduling.k8s.io/v1alpha3=true".
type asked struct{ kubernetes, next, kueue, jobset, gates, apis string }

func (a asked) versions() (v versions, err error) {
	if v.kubernetes, err = kubernetesNamed(a.kubernetes); err != nil {
		return v, err
	}
	v.kubernetes.moreGates, v.kubernetes.moreAPIs = a.gates, a.apis
	if a.next != "" {
		next, err := kubernetesNamed(a.next)
		if err != nil {
			return v, err
		}
		v.next = &next
	}
	if v.kueue, err = releaseNamed("Kueue", a.kueue, kueueReleases); err != nil {
		return v, err
	}
	v.jobset, err = releaseNamed("JobSet", a.jobset, jobsetReleases)
	return v, err
}

func kubernetesNamed(name string) (kubernetes, error) {
	var all []pinned
	for _, k := range kubernetesReleases {
		all = append(all, k.pinned)
	}
	r, err := releaseNamed("Kubernetes", name, all)
	if err != nil {
		return kubernetes{}, err
	}
	return kubernetesReleases[slices.Index(all, r)], nil
}

func releaseNamed(program, name string, all []pinned) (pinned, error) {
	var names []string
	for _, r := range all {
		if name == r.name || name == "" && r.module == defaultModule {
			return r, nil
		}
		names = append(names, r.name)
	}
	return pinned{}, fmt.Errorf("no release %q of %s; there are %s", name, program, strings.Join(names, ", "))
}

// isDefault reports whether none was asked for.
func (v versions) isDefault() bool {
	return v.kubernetes.module == defaultModule && v.kueue.module == defaultModule && v.jobset.module == defaultModule
}

// arguments are the flags that ask for these releases.
func (v versions) arguments() []string {
	args := []string{"--kubernetes=" + v.kubernetes.name, "--kueue=" + v.kueue.name, "--jobset=" + v.jobset.name}
	if v.next != nil {
		args = append(args, "--next-kubernetes="+v.next.name)
	}
	if v.kubernetes.moreGates != "" {
		args = append(args, "--gates="+v.kubernetes.moreGates)
	}
	if v.kubernetes.moreAPIs != "" {
		args = append(args, "--apis="+v.kubernetes.moreAPIs)
	}
	return args
}

// environment tells specs what they run on.
func (v versions) environment() []string {
	env := []string{"SIGNALBOX_KUBERNETES=" + v.kubernetes.name, "SIGNALBOX_KUEUE=" + v.kueue.name,
		"SIGNALBOX_JOBSET=" + v.jobset.name}
	if v.next != nil {
		env = append(env, "SIGNALBOX_NEXT_KUBERNETES="+v.next.name)
	}
	return env
}

// flags are those that a component of Kubernetes needs for PodGroups, and those that were asked for.
func (k kubernetes) flags(component string) []string {
	join := func(parts ...string) string {
		return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ",")
	}
	var flags []string
	if gates := join(k.gates, k.moreGates); gates != "" {
		flags = append(flags, "--feature-gates="+gates)
	}
	served := ""
	if k.podGroups != "" {
		served = "scheduling.k8s.io/" + k.podGroups + "=true"
	}
	if apis := join(served, k.moreAPIs); apis != "" && component == "kube-apiserver" {
		flags = append(flags, "--runtime-config="+apis)
	}
	return flags
}

// part is a program of Kubernetes in this release.
func (k kubernetes) part(name string) part {
	return part{name: name, module: k.module, pkg: "k8s.io/kubernetes/cmd/" + name, stamp: k.version}
}
