package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/features"
	utilqueue "sigs.k8s.io/kueue/pkg/util/queue"
	utilresource "sigs.k8s.io/kueue/pkg/util/resource"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

// simulatedUID begins the UIDs of TrainJobs that aren't in the cluster.
const simulatedUID = "simulated-"

// simulatedJobs returns the TrainJob of a name, or those of a file unless it is "", changed as --set says.
func (s *session) simulatedJobs(ctx context.Context, name, file string, changes []string) ([]*api.TrainJob, error) {
	if file == "" {
		job, err := s.trainJob(ctx, name)
		if err != nil {
			return nil, err
		}
		return []*api.TrainJob{job}, set(job, changes)
	}
	files, err := read(file, s.streams.In)
	if err != nil {
		return nil, err
	}
	var jobs []*api.TrainJob
	for _, f := range files {
		of, err := jobsIn(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		jobs = append(jobs, of...)
	}
	if len(jobs) == 0 {
		return nil, fmt.Errorf("%s has no TrainJob", file)
	}
	for i, job := range jobs {
		job.Namespace = cmp.Or(job.Namespace, s.namespace)
		if job.Name == "" {
			job.Name = job.GenerateName + "simulated"
			if i > 0 {
				job.Name += "-" + strconv.Itoa(i+1)
			}
		}
		job.UID = types.UID(fmt.Sprintf("%s%d", simulatedUID, i))
		job.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(i) * time.Second)) // in their order
		if err := errors.Join(set(job, changes), validate(job)); err != nil {
			return nil, fmt.Errorf("TrainJob %s: %w", job.Name, err)
		}
	}
	return jobs, nil
}

func set(job *api.TrainJob, changes []string) error {
	for _, set := range changes {
		key, value, found := strings.Cut(set, "=")
		if !found {
			return fmt.Errorf("--set %s: it must be KEY=VALUE", set)
		}
		err := change(job, key, value)
		if err == nil {
			err = validate(job)
		}
		if err != nil {
			return fmt.Errorf("--set %s: %w", set, err)
		}
	}
	return nil
}

// validate returns an error for what the API server or Signalbox's webhook rejects of what --set changes, and of what a
// TrainJob waits for.
func validate(job *api.TrainJob) error {
	path := field.NewPath("spec", "trainer")
	errs := after.Check(job, field.NewPath("metadata", "annotations"))
	if t := job.Spec.Trainer; t != nil {
		if n := ptr.Deref(t.NumNodes, 1); n < 1 {
			errs = append(errs, field.Invalid(path.Child("numNodes"), n, "must be 1 or more"))
		}
		if r := t.ResourcesPerNode; r != nil {
			at := path.Child("resourcesPerNode")
			errs = append(errs, overrides.CheckResources(at.Child("requests"), r.Requests)...)
			errs = append(errs, overrides.CheckResources(at.Child("limits"), r.Limits)...)
		}
	}
	labels := field.NewPath("metadata", "labels")
	for _, key := range []string{constants.QueueLabel, constants.WorkloadPriorityClassLabel} {
		value, found := job.Labels[key]
		if !found {
			continue
		}
		for _, text := range validation.IsDNS1123Subdomain(value) {
			errs = append(errs, field.Invalid(labels.Key(key), value, text))
		}
	}
	return errs.ToAggregate()
}

func jobsIn(f file) ([]*api.TrainJob, error) {
	objects, err := f.objects()
	if err != nil {
		return nil, err
	}
	var jobs []*api.TrainJob
	for _, o := range objects {
		if o.GetKind() != trainerapi.TrainJobKind {
			continue
		}
		job := &api.TrainJob{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, job); err != nil {
			return nil, fmt.Errorf("TrainJob %s: %w", o.GetName(), err)
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

func change(job *api.TrainJob, key, value string) error {
	job.Spec.Trainer = cmp.Or(job.Spec.Trainer, &trainerapi.Trainer{})
	trainer := job.Spec.Trainer
	name, isResource := strings.CutPrefix(key, "resource.")
	switch {
	case key == "nodes":
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 1 {
			return errors.New("nodes must be a whole number of at least 1")
		}
		trainer.NumNodes = ptr.To(int32(n))
	case key == "minimum":
		if n, err := strconv.ParseInt(value, 10, 32); err != nil || n < 1 {
			return errors.New("minimum must be a whole number of at least 1")
		}
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, overrides.MinParallelismAnnotation, value)
	case key == "queue":
		metav1.SetMetaDataLabel(&job.ObjectMeta, constants.QueueLabel, value)
	case key == "priority":
		metav1.SetMetaDataLabel(&job.ObjectMeta, constants.WorkloadPriorityClassLabel, value)
	case isResource:
		amount, err := resource.ParseQuantity(value)
		if err != nil {
			return err
		}
		set := corev1.ResourceList{corev1.ResourceName(name): amount}
		trainer.ResourcesPerNode = cmp.Or(trainer.ResourcesPerNode, &corev1.ResourceRequirements{})
		r := trainer.ResourcesPerNode
		r.Requests = utilresource.MergeResourceListKeepFirst(set, r.Requests)
		r.Limits = utilresource.MergeResourceListKeepFirst(set, r.Limits)
	default:
		return errors.New("the keys are nodes, minimum, queue, priority and resource.NAME")
	}
	return nil
}

// simulatedWorkload returns the Workload of a TrainJob: the one that it has, if nothing is changed, or else the one
// that Signalbox would make.
func (s *session) simulatedWorkload(
	ctx context.Context, job *api.TrainJob, q *queues, changed bool,
) (*kueue.Workload, error) {
	is := q.index.WorkloadOf(job)
	if is != nil && !isFinished(is) && !changed {
		return is, nil
	}
	runtime, err := store.LiveRuntime(ctx, s.client, s.defaulted(job))
	if err != nil {
		return nil, err
	}
	if runtime == nil {
		return nil, fmt.Errorf("%s, which the TrainJob refers to, doesn't exist", store.Describe(job))
	}
	trainer, err := s.dialect(ctx)
	if err != nil {
		return nil, err
	}
	sets, err := podSetsOf(trainer, job, runtime.Pinnable())
	if err != nil {
		return nil, err
	}
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{
		Namespace: job.Namespace, Name: "simulated-" + job.Name, UID: cmp.Or(job.UID, "simulated"),
		CreationTimestamp: job.CreationTimestamp, OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)),
		},
	}}
	if is != nil {
		wl.ObjectMeta = *is.ObjectMeta.DeepCopy()
	}
	wl.Spec.PodSets, wl.Spec.Active = sets, ptr.To(true)
	if wl.Spec.QueueName, err = q.queueOf(job); err != nil {
		return nil, err
	}
	priority, err := s.priority(ctx, job, sets)
	if wl.Spec.Priority = &priority; priority == 0 && is != nil {
		wl.Spec.Priority = is.Spec.Priority // nothing else is known of its class
	}
	return wl, err
}

// podSetsOf returns the PodSets of a TrainJob on a runtime, with the least that it may be admitted with.
func podSetsOf(
	trainer *dialect.Dialect, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec,
) ([]kueue.PodSet, error) {
	others := trainer.Others(job)
	effective, err := trainer.Compute(job, runtime, others)
	if err != nil {
		return nil, err
	}
	sets, err := podsets.Of(effective,
		podsets.Features{TopologyAware: features.Enabled(features.TopologyAwareScheduling)})
	if err != nil || !features.Enabled(features.PartialAdmission) {
		return sets, err
	}
	least, err := overrides.MinNodes(job, runtime)
	if err != nil || least >= overrides.Nodes(job, runtime) {
		return sets, err
	}
	if !trainer.PartialAdmission {
		return nil, fmt.Errorf("%s can't run a TrainJob with fewer nodes than it asks for; remove annotation %s",
			trainer.Name, overrides.MinParallelismAnnotation)
	}
	if effective, err = trainer.Compute(overrides.WithNodes(job, least), runtime, others); err != nil {
		return nil, fmt.Errorf("with %d nodes: %w", least, err)
	}
	return sets, podsets.SetMinCount(sets, effective)
}

// queueOf returns the queue of a TrainJob: that of its label or, as Kueue and Signalbox have it, the namespace's queue
// named default.
func (q *queues) queueOf(job *api.TrainJob) (kueue.LocalQueueName, error) {
	if name := job.Labels[constants.QueueLabel]; name != "" {
		return kueue.LocalQueueName(name), nil
	}
	if slices.ContainsFunc(q.LocalQueues, func(lq kueue.LocalQueue) bool {
		return utilqueue.Key(&lq) == utilqueue.DefaultQueueKey(job.Namespace)
	}) {
		return constants.DefaultLocalQueueName, nil
	}
	const name = "; name a queue with --set queue=NAME"
	if q.Config != nil && q.Config.ManageJobsWithoutQueueName {
		return "", errors.New("the TrainJob has no label kueue.x-k8s.io/queue-name, and Kueue has " +
			"manageJobsWithoutQueueName: it waits until it has a queue" + name)
	}
	return "", errors.New("the TrainJob has no label kueue.x-k8s.io/queue-name: it runs at once, outside quota" + name)
}

// priority returns a TrainJob's priority as Kueue finds it: by its WorkloadPriorityClass, or else by its pods' class.
func (s *session) priority(ctx context.Context, job *api.TrainJob, sets []kueue.PodSet) (int32, error) {
	if name := job.Labels[constants.WorkloadPriorityClassLabel]; name != "" {
		var class kueue.WorkloadPriorityClass
		switch err := s.client.Get(ctx, client.ObjectKey{Name: name}, &class); {
		case apierrors.IsForbidden(err):
			s.lacks("get workloadpriorityclasses.kueue.x-k8s.io: of class " + name + ", priority 0 is assumed, or what it was")
			return 0, nil
		case err != nil:
			return 0, fmt.Errorf("reading WorkloadPriorityClass %s: %w", name, err)
		}
		return class.Value, nil
	}
	var classes schedulingv1.PriorityClassList
	if _, err := s.list(ctx, &classes, "priorityclasses.scheduling.k8s.io"); err != nil {
		return 0, err
	}
	for i := range sets {
		for _, class := range classes.Items {
			if class.Name == sets[i].Template.Spec.PriorityClassName {
				return class.Value, nil
			}
		}
	}
	for _, class := range classes.Items {
		if class.GlobalDefault {
			return class.Value, nil
		}
	}
	return 0, nil
}
