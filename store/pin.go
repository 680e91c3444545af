package store

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/review"
)

// PinAnnotation holds the runtime with which a TrainJob of the bundled Trainer was first started: its spec as JSON,
// compressed by gzip, in base64. The request that starts the TrainJob writes it. Later changes or the deletion of the
// runtime don't affect the TrainJob.
const PinAnnotation = "signalbox.dev/runtime"

// What a pin may unfold to: no more than a runtime can have, which the API server stores (1.5 MiB), and than what may
// be decoded (limits.elements of the configuration is at most maxPinElements).
const (
	maxPin         = 3 << 19 // bytes
	maxPinElements = 32 << 10
)

// unfolding is the pins that are unfolded now. A pin of kilobytes takes megabytes: whoever sends many to the webhooks
// waits.
var unfolding = make(chan struct{}, 2)

// packers are reused: a gzip writer takes most of a megabyte.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}

// Pin returns the value of PinAnnotation for a runtime.
func Pin(runtime *trainerapi.TrainingRuntimeSpec) (string, error) {
	data, err := json.Marshal(runtime)
	if err != nil {
		return "", fmt.Errorf("pinning the runtime: %w", err)
	}
	var out bytes.Buffer
	w := packers.Get().(*gzip.Writer)
	defer packers.Put(w)
	w.Reset(&out)
	_, err = w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		return "", fmt.Errorf("pinning the runtime: %w", err)
	}
	return base64.StdEncoding.EncodeToString(out.Bytes()), nil
}

// Pinned returns the runtime that a TrainJob is pinned to, nil if it was never started. An annotation that can't be
// read is an error that names it.
func Pinned(job *api.TrainJob) (*trainerapi.TrainingRuntimeSpec, error) {
	value, found := job.Annotations[PinAnnotation]
	if !found {
		return nil, nil
	}
	runtime, err := unpin(value)
	if err != nil {
		return nil, fmt.Errorf("metadata.annotations[%s]: %w; it was not written by Signalbox: delete the TrainJob and "+
			"create it without the annotation", PinAnnotation, err)
	}
	return runtime, nil
}

func unpin(value string) (*trainerapi.TrainingRuntimeSpec, error) {
	packed, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	unfolding <- struct{}{}
	defer func() { <-unfolding }()
	data, err := io.ReadAll(io.LimitReader(r, maxPin+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxPin {
		return nil, fmt.Errorf("it unfolds to more than %d bytes", maxPin)
	}
	if n, err := review.Elements(data); err != nil || n > maxPinElements {
		return nil, errors.Join(err, fmt.Errorf("it unfolds to %d list elements; at most %d are read", n, maxPinElements))
	}
	runtime := &trainerapi.TrainingRuntimeSpec{}
	return runtime, json.Unmarshal(data, runtime)
}
