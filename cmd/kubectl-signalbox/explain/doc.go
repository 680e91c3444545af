// Package explain says why a TrainJob is in the state that it is in, from the objects that a user may read. Everything
// in it is a pure function of these objects.
package explain
