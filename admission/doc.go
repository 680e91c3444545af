// Package admission decides how a TrainJob starts, and when it has stopped.
//
// Decide is a pure function: from the admitted Workload, the flavors that it was assigned, the TrainJob and its runtime
// it computes the integration's entry of runtimePatches, or an error that says what conflicts. Package store writes it.
package admission
