// Package store is the TrainJob as the cluster keeps it: the one writer of TrainJobs with its preconditions, the
// runtime that a TrainJob runs, its JobSet and its pods. Packages integration and trainer read and write through it. It
// decides nothing about quota.
package store

import (
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/store/ledger"
)

// Store is all that Signalbox reads and writes of TrainJobs, shared by the integration and the bundled Trainer.
type Store struct {
	Writer   *Writer
	JobSets  *JobSets
	Pods     *Pods
	Runtimes *Runtimes
	// Ledger records who used what; nil if nobody asks for that.
	Ledger *ledger.Ledger
}

// New returns a Store. live reads from the API server; it must not be a cache. extended is set if the TrainJobs' CRD is
// the bundled Trainer's.
func New(c client.Client, live client.Reader, clk clock.PassiveClock, extended bool) *Store {
	return &Store{
		Writer: NewWriter(c, clk, extended), JobSets: NewJobSets(c, live), Pods: NewPods(c, live),
		Runtimes: NewRuntimes(c, live),
	}
}
