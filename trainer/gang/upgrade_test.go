package gang

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestDeleteOutdated(t *testing.T) {
	s := newClusterWith(t, v1alpha2{}, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	s.withoutOthers(t) // Kubernetes' finalizer stays
	if err := s.client.Create(t.Context(), s.of("Workload", "theirs")); err != nil {
		t.Fatal(err)
	}
	var deleted []string
	count := func(o *metav1.PartialObjectMetadata) { deleted = append(deleted, o.Kind) }
	remaining, err := DeleteOutdated(t.Context(), s.client, count)
	if err != nil || strings.Join(deleted, " ") != "PodGroup PodGroup Workload" || s.objects(t) != "workloadtheirs" {
		t.Errorf("got %v, %v, %s", deleted, err, s.objects(t))
	}
	if len(remaining) != 1 || remaining[0].Name != "theirs" {
		t.Errorf("others' are left, and named: got %v", remaining)
	}
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"delete", "patch"} {
		s.fails = func(v string, _ client.Object) error {
			if v == verb {
				return errors.New("no connection")
			}
			return nil
		}
		if _, err := DeleteOutdated(t.Context(), s.client, count); err == nil ||
			!strings.Contains(err.Error(), "no connection") || !strings.Contains(err.Error(), "PodGroup team/train-") {
			t.Errorf("%s: got %v", verb, err)
		}
	}
}
