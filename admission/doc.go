// Package admission decides how a TrainJob starts and stops, and writes it.
//
// Decide is a pure function: from the admitted Workload, the flavors that it was assigned, the TrainJob and its runtime
// it makes the integration's entry of runtimePatches, or an error that says what is in the way. Writer sends what was
// decided, each transition in one request.
package admission
