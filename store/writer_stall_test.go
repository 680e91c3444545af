package store

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestWriterAsRead holds that a TrainJob is stopped or restarted for a stall only in the version that was judged.
func TestWriterAsRead(t *testing.T) {
	for name, c := range map[string]struct {
		write func(*testing.T, *Writer, *api.TrainJob) error
		want  string
	}{
		"a stop": {func(t *testing.T, w *Writer, job *api.TrainJob) error { return w.Stop(t.Context(), job, "stalled") },
			`{"metadata":{"annotations":{"signalbox.dev/stop":"stalled"},"resourceVersion":"7","uid":"uid"}}`},
		"a stop without a queue": {func(t *testing.T, w *Writer, job *api.TrainJob) error {
			return w.SuspendAsRead(t.Context(), job)
		}, `{"metadata":{"resourceVersion":"7","uid":"uid"},"spec":{"suspend":true}}`},
		"a restart": {func(t *testing.T, w *Writer, job *api.TrainJob) error {
			status := job.Status.DeepCopy()
			status.Lost = &api.Loss{JobSet: "js", Restarts: 1, Restarting: true}
			return w.StatusAsRead(t.Context(), job, status)
		}, `status {"metadata":{"resourceVersion":"7","uid":"uid"},"status":{"lost":{"jobSet":"js","pod":"","restarting":` +
			`true,"restarts":1},"state":"Starting"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			job := storedJob(t, "spec: {suspend: false}")
			s := newStored(t, job)
			w := s.writer(true)
			if err := c.write(t, w, job.DeepCopy()); err != nil || !w.Behind(job) {
				t.Fatalf("got %v", err)
			}
			s.wantSent("guarded", c.want)
			if err := c.write(t, w, job.DeepCopy()); !apierrors.IsConflict(err) {
				t.Errorf("it has changed since: got %v", err)
			}
		})
	}
}
