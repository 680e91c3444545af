package trainer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestOwnerUnknown(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	job := &api.TrainJob{}
	job.Name, job.CreationTimestamp = "model", metav1.NewTime(created)
	unknown := apierrors.NewNotFound(
		schema.GroupResource{Group: trainerapi.GroupVersion.Group, Resource: "trainjobs"},
		"model",
	)
	for name, test := range map[string]struct {
		err   error
		after time.Duration
		want  bool
	}{
		"another's webhook doesn't know it yet": {fmt.Errorf("applying the JobSet: %w", unknown), time.Second, true},
		"nor will it":                           {fmt.Errorf("applying the JobSet: %w", unknown), unknownFor, false},
		"something else is missing": {
			apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "model"), time.Second, false,
		},
		"refused for what it is": {
			apierrors.NewForbidden(schema.GroupResource{}, "model", errors.New("no")), time.Second, false,
		},
		"made": {nil, time.Second, false},
	} {
		if got := ownerUnknown(job, test.err, created.Add(test.after)); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
