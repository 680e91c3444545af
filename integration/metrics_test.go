package integration

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
)

func TestLabelsOfMetrics(t *testing.T) {
	resource := schema.GroupResource{Group: "trainer.kubeflow.org", Resource: "trainjobs"}
	for want, err := range map[string]error{
		"started":  nil,
		"conflict": fmt.Errorf("starting: %w", apierrors.NewConflict(resource, "a", errors.New("it has changed"))),
		"refused":  fmt.Errorf("starting: %w", apierrors.NewForbidden(resource, "a", errors.New("by a webhook"))),
		"failed":   errors.New("connection refused"),
	} {
		if got := resultOf(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
	if got := resultOf(apierrors.NewInternalError(errors.New("no answer of a webhook"))); got != "failed" {
		t.Errorf("an internal error: got %q", got)
	}
	for reason, want := range map[jobframework.StopReason]string{
		"WorkloadEvictedDueToPreempted":           "Preempted",
		jobframework.StopReasonWorkloadDeleted:    "WorkloadDeleted",
		jobframework.StopReasonNoMatchingWorkload: "NoMatchingWorkload",
	} {
		if got := evictionOf(reason); got != want {
			t.Errorf("%s: got %q, want %q", reason, got, want)
		}
	}
}
