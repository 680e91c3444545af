package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store"
)

// mostAsked is how many TrainJobs one manifest may have: each is simulated on its own.
const mostAsked = 20

// askTime is how long a simulation may take.
const askTime = 30 * time.Second

// whatIf shows what would become of a TrainJob, of a manifest or of the cluster, with changes.
func (v *viewer) whatIf(ctx context.Context, k *known, r serve.Request) (serve.Answer, error) {
	s := v.session("")
	view := page.WhatIf{Form: page.Form{
		Name: r.Values.Get("name"), Manifest: r.Values.Get("manifest"), Nodes: r.Values.Get("nodes"),
		Minimum: r.Values.Get("minimum"), Queue: r.Values.Get("queue"), Priority: r.Values.Get("priority"),
	}}
	for i := range k.jobs[:min(len(k.jobs), 500)] {
		view.Names = append(view.Names, k.jobs[i].Namespace+"/"+k.jobs[i].Name)
	}
	for i := range k.LocalQueues {
		if !slices.Contains(view.Queues, k.LocalQueues[i].Name) {
			view.Queues = append(view.Queues, k.LocalQueues[i].Name)
		}
	}
	var classes kueue.WorkloadPriorityClassList
	if _, err := s.list(ctx, &classes, "workloadpriorityclasses.kueue.x-k8s.io"); err != nil {
		return serve.Answer{}, err
	}
	for i := range classes.Items {
		view.Priorities = append(view.Priorities, classes.Items[i].Name)
	}
	if r.Acts {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		v.asking.Lock() // a simulation uses a processor: one at a time for each user
		defer v.asking.Unlock()
		if err := v.ask(ctx, s, k, &view); err != nil {
			view.Problem = err.Error() // what was written stays in the form
		}
	}
	return shows("What if", append(s.missing, k.missing...), view), nil
}

// ask completes the view by answers.
func (v *viewer) ask(ctx context.Context, s *session, k *known, view *page.WhatIf) error {
	if !k.complete() {
		return errors.New(
			"a simulation needs all queues and Workloads, and all nodes and pods where a flavor has a topology, " +
				"and you may not list these",
		)
	}
	var changes []string
	for _, c := range []struct{ key, value string }{
		{"nodes", view.Nodes}, {"minimum", view.Minimum}, {"queue", view.Queue}, {"priority", view.Priority},
	} {
		if value := strings.TrimSpace(c.value); value != "" {
			changes = append(changes, c.key+"="+value)
		}
	}
	jobs, err := v.asked(ctx, s, view, changes)
	if err != nil {
		return err
	}
	if len(jobs) > mostAsked {
		return fmt.Errorf("the manifest has %d TrainJobs; at most %d are simulated here", len(jobs), mostAsked)
	}
	views, err := s.simulate(ctx, jobs, k.queues, simulateOptions{set: changes, until: true})
	if err != nil {
		return err
	}
	for i, is := range views {
		view.Answers = append(view.Answers, answerOf(is))
		text, err := manifestOf(jobs[i])
		if err != nil {
			return err
		}
		view.Changed += text
	}
	return nil
}

// asked returns the TrainJobs of the form, with the changes.
func (v *viewer) asked(
	ctx context.Context, s *session, view *page.WhatIf, changes []string,
) ([]*api.TrainJob, error) {
	name, manifest := strings.TrimSpace(view.Name), strings.TrimSpace(view.Manifest)
	switch {
	case (name == "") == (manifest == ""):
		return nil, errors.New("name a TrainJob of the cluster, or paste a manifest")
	case manifest != "":
		s.streams.In = strings.NewReader(manifest)
		return s.simulatedJobs(ctx, "", "-", changes)
	}
	namespace, name, found := strings.Cut(name, "/")
	if !found {
		return nil, errors.New("name the TrainJob by its namespace and its name, such as vision/resnet")
	}
	s.namespace = namespace
	return s.simulatedJobs(ctx, name, "", changes)
}

func answerOf(v *simulated) page.Answer {
	a := page.Answer{
		Namespace: v.Namespace,
		Name:      v.Name,
		Verdict:   string(v.Verdict),
		Text:      v.becomes(),
		Message:   v.Message,
	}
	if v.Verdict == verdictBlocked {
		a.Message = ""
	}
	if v.Verdict == "Waits" {
		a.Ahead = v.Ahead
	}
	if e := v.Start; e != nil {
		a.Start = &page.Start{Earliest: e.Earliest, Likely: e.Likely, Latest: e.Latest, Sure: e.Sure}
	}
	for _, c := range v.Changes {
		a.Changes = append(a.Changes, c.Set)
	}
	return a
}

// managers are the annotations that the manager writes, and kubectl's.
var managers = []string{api.UserAnnotation, api.AfterEndedAnnotation, legacy.RecordAnnotation, store.PinAnnotation,
	corev1.LastAppliedConfigAnnotation}

// manifestOf returns a TrainJob as one would write it: without what the manager has written.
func manifestOf(job *api.TrainJob) (string, error) {
	job = job.DeepCopy()
	job.ObjectMeta = metav1.ObjectMeta{Name: job.Name, Namespace: job.Namespace, Labels: job.Labels,
		Annotations: job.Annotations}
	maps.DeleteFunc(job.Annotations, func(key, _ string) bool { return slices.Contains(managers, key) })
	job.Spec.RuntimePatches = slices.DeleteFunc(job.Spec.RuntimePatches,
		func(p trainerapi.RuntimePatch) bool { return p.Manager == overrides.Manager })
	job.Spec.Suspend = ptr.To(true)
	job.APIVersion, job.Kind = trainerapi.GroupVersion.String(), trainerapi.TrainJobKind
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(job)
	if err != nil {
		return "", fmt.Errorf("writing the manifest: %w", err)
	}
	delete(fields, "status")
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	raw, err := yaml.Marshal(fields)
	return "---\n" + string(raw), err
}
