package integration

import (
	"context"
	"fmt"
	"slices"
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// jobframework returns an error for a TrainJob whose priority class doesn't exist before it does anything else for it:
// such a TrainJob would be neither evicted nor declared finished. So a class that doesn't exist is rejected; one that
// was deleted since doesn't count where there is a Workload, and blocks a TrainJob that needs another.

// priorityClassRetry is when a TrainJob is looked at again whose priority class doesn't exist: nothing watches these.
const priorityClassRetry = time.Minute

// observePriority finds out whether the TrainJob's priority class exists, where jobframework would read it: if the
// TrainJob has a Workload of another class, or may get a new one. A prebuilt Workload has its own.
func (r *observer) observePriority(ctx context.Context, o *situation) error {
	name := jobframework.WorkloadPriorityClassName(o.job)
	if name == "" || jobframework.PrebuiltWorkloadNameFor(o.job) != "" {
		return nil
	}
	own := o.workloads.own
	another := slices.ContainsFunc(own, func(wl *kueue.Workload) bool { return classOf(wl) != name })
	if !another && (o.stage != stageSuspended || holdQuota(own)) {
		return nil
	}
	exists, err := r.PriorityClassExists(ctx, name)
	o.workloads.noClass = err == nil && !exists
	return err
}

// noPriorityClass returns the error for a TrainJob that needs a Workload, and whose priority class doesn't exist.
func noPriorityClass(job *api.TrainJob) error {
	return &admission.BlockedError{Reason: ReasonNoPriorityClass, RetryAfter: priorityClassRetry, Err: fmt.Errorf(
		"there is no WorkloadPriorityClass %q; create it, or change label %s",
		jobframework.WorkloadPriorityClassName(job), constants.WorkloadPriorityClassLabel)}
}
