package overrides

import (
	"bytes"
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
// Built: that is compared with Kubeflow Trainer's JobSets alone.
func (m *Memo) Compute(d Dialect, job *api.TrainJob, runtime *trainer.TrainingRuntimeSpec, entries []Entry) (*Effective, error) {
	if m == nil {
		return d.Compute(job, runtime, entries)
	}
	shared, own, err := keysOf(d, job, runtime, entries)
	if err != nil {
		return nil, err
	}
	for _, key := range []any{shared, own} {
		if kept, found := m.kept.Get(key); found {
			return kept.(*Effective), nil
		}
	}
	e, err := d.Compute(job, runtime, entries)
	if err != nil {
		return nil, err // it names what is wrong of this TrainJob
	}
	if d.Bundled {
		e.Built = nil
	}
	hasName, err := mentions(e, job)
	if err != nil {
		return nil, err
	}
	if hasName {
		m.kept.Add(own, e)
	} else {
		m.kept.Add(shared, e)
	}
	return e, nil
}

// mentions tells whether what a TrainJob runs has something of its own name in it, as the addresses of its pods have, which
// Trainer puts into the environment (Built) and, for torchtune, into the command.
func mentions(e *Effective, job *api.TrainJob) (bool, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return false, fmt.Errorf("encoding what the TrainJob runs: %w", err)
	}
	return bytes.Contains(data, []byte(job.Name)) || job.UID != "" && bytes.Contains(data, []byte(job.UID)), nil
}

type key [sha256.Size]byte

// keysOf returns the keys of what a TrainJob has in common with others, and of it alone. They are of all that Compute
// reads, so that nothing that is kept is ever out of date.
func keysOf(d Dialect, job *api.TrainJob, runtime *trainer.TrainingRuntimeSpec, entries []Entry) (shared, own key, err error) {
	type change struct {
		Patch    *trainer.TrainingRuntimeSpecPatch
		Replaces bool
	}
	read := struct {
		Dialect, Namespace, RuntimeName string
		Runtime                         *trainer.TrainingRuntimeSpec
		Trainer                         *trainer.Trainer
		Initializer                     *trainer.Initializer
		Changes                         []change
	}{fmt.Sprint(d), job.Namespace, job.Spec.RuntimeRef.Name, runtime, job.Spec.Trainer, job.Spec.Initializer, nil}
	for _, e := range entries {
		read.Changes = append(read.Changes, change{e.Patch, e.Replaces})
	}
	data, err := json.Marshal(read)
	if err != nil {
		return shared, own, fmt.Errorf("encoding what the TrainJob runs: %w", err)
	}
	shared = sha256.Sum256(data)
	return shared, sha256.Sum256(append(append(shared[:len(shared):len(shared)], job.Name...), job.UID...)), nil
}
