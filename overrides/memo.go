package overrides

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/utils/lru"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// Memo keeps the results of Compute. TrainJobs of one runtime with the same entries share a result, and each needs it
// several times from its queue to its start. It is bounded by memory and not by a number, because users decide how
// large a result is.
type Memo struct {
	limit int

	mu    sync.Mutex // of both: the bytes are those of the results that are kept
	bytes int
	kept  *lru.Cache // results by their keys
}

// result is a result of Compute, with an estimate of the memory that it takes.
type result struct {
	effective *Effective
	bytes     int
}

// An Effective takes a fixed amount of memory, and more for each byte of its JSON. Measured with JSON of 1 to 250
// KB (heap after two collections): 15 to 25 KB for the smallest, 1.0 to 2.7 bytes a byte for the others.
const (
	perResult = 32 << 10
	perByte   = 3
)

func sizeOf(jsonBytes int) int { return perResult + jsonBytes*perByte }

// NewMemo returns a Memo that takes at most that many bytes. It drops the least recently used results.
func NewMemo(bytes int) *Memo {
	m := &Memo{limit: bytes}
	m.kept = lru.NewWithEvictionFunc(0, func(_ lru.Key, dropped any) { m.bytes -= dropped.(result).bytes })
	return m
}

// add keeps a result unless it takes more than a quarter of the whole.
func (m *Memo) add(k key, e *Effective, size int) {
	r := result{e, sizeOf(size)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, found := m.kept.Get(k); found || r.bytes > m.limit/4 {
		return
	}
	m.kept.Add(k, r)
	for m.bytes += r.bytes; m.bytes > m.limit; {
		m.kept.RemoveOldest()
	}
}

// Compute returns the result of the function Compute, which is shared and must not be changed. Built is left out if the
// rules amend.
func (m *Memo) Compute(
	rules pipeline.Rules, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) (*Effective, error) {
	shared, own, err := keysOf(rules, job, runtime, entries)
	if err != nil {
		return nil, err
	}
	for _, k := range []key{shared, own} {
		if kept, found := m.kept.Get(k); found {
			return kept.(result).effective, nil
		}
	}
	e, err := compute(rules, job, runtime, entries, !rules.Amends)
	if err != nil {
		return nil, err // it names what is wrong of this TrainJob
	}
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encoding what the TrainJob runs: %w", err)
	}
	if mentions(data, job) {
		m.add(own, e, len(data))
	} else {
		m.add(shared, e, len(data))
	}
	return e, nil
}

// mentions reports whether a result contains the TrainJob's name or UID. Trainer writes the addresses of its pods into
// the environment (Built) and, for torchtune, into the command.
func mentions(data []byte, job *api.TrainJob) bool {
	return bytes.Contains(data, []byte(job.Name)) || job.UID != "" && bytes.Contains(data, []byte(job.UID))
}

type key [sha256.Size]byte

// keysOf returns the keys of the result that a TrainJob shares with others, and of its own. They cover all that Compute
// reads, so that no kept result is ever stale.
func keysOf(
	rules pipeline.Rules, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) (shared, own key, err error) {
	type change struct {
		Patch    *trainerapi.TrainingRuntimeSpecPatch
		Replaces bool
	}
	read := struct {
		Rules                  pipeline.Rules
		Namespace, RuntimeName string
		Runtime                *trainerapi.TrainingRuntimeSpec
		Trainer                *trainerapi.Trainer
		Initializer            *trainerapi.Initializer
		Changes                []change
		AdmittedNodes          int32 // of the integration's entry alone, which Changes don't show
	}{
		rules, job.Namespace, job.Spec.RuntimeRef.Name, runtime, job.Spec.Trainer, job.Spec.Initializer, nil,
		admittedNodes(entries),
	}
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
