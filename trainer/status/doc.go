// Package status computes the status of a TrainJob of the bundled Trainer from its JobSet and its Workload, and when a
// change of it is worth a write. It asks and writes nothing.
package status
