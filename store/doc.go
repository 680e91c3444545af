// Package store is the TrainJob as the cluster keeps it: the one writer of TrainJobs with its preconditions, the
// runtime that a TrainJob runs, its JobSet and its pods. Packages integration and trainer read and write through it. It
// decides nothing about quota.
package store
