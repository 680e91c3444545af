package overrides

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/utils/lru"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Memo keeps what was computed last, for the TrainJobs of which the same comes out: those of one runtime that change it
// alike, and each of them again from its queue to its start. A nil Memo keeps nothing.
type Memo struct{ kept *lru.Cache }

// NewMemo returns a Memo of so many results; the one that was not asked for the longest goes.
func NewMemo(results int) *Memo { return &Memo{lru.New(results)} }

// Compute returns what Dialect.Compute does, which is shared and must not be changed. For the bundled Trainer it has no
// Built: that holds the name of a TrainJob, and is compared with Kubeflow Trainer's JobSets alone.
func (m *Memo) Compute(d Dialect, job *api.TrainJob, runtime *trainer.TrainingRuntimeSpec, entries []Entry) (*Effective, error) {
	if m == nil {
		return d.Compute(job, runtime, entries)
	}
	key, err := keyOf(d, job, runtime, entries)
	if err != nil {
		return nil, err
	}
	if kept, found := m.kept.Get(key); found {
		return kept.(*Effective), nil
	}
	e, err := d.Compute(job, runtime, entries)
	if err != nil {
		return nil, err // it names what is wrong of this TrainJob
	}
	if d.Bundled {
		e.Built = nil
	}
	m.kept.Add(key, e)
	return e, nil
}

// keyOf is of all that Compute reads, so that nothing that is kept is ever out of date.
func keyOf(d Dialect, job *api.TrainJob, runtime *trainer.TrainingRuntimeSpec, entries []Entry) ([sha256.Size]byte, error) {
	type change struct {
		Patch    *trainer.TrainingRuntimeSpecPatch
		Replaces bool
	}
	read := struct {
		Dialect     string
		Runtime     *trainer.TrainingRuntimeSpec
		Trainer     *trainer.Trainer
		Initializer *trainer.Initializer
		Changes     []change
		Job         []string // where the result holds its name
	}{Dialect: fmt.Sprint(d), Runtime: runtime, Trainer: job.Spec.Trainer, Initializer: job.Spec.Initializer}
	for _, e := range entries {
		read.Changes = append(read.Changes, change{e.Patch, e.Replaces})
	}
	if !d.Bundled {
		read.Job = []string{job.Namespace, job.Name, string(job.UID)}
	}
	data, err := json.Marshal(read)
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("encoding what the TrainJob runs: %w", err)
	}
	return sha256.Sum256(data), nil
}
