// Package model searches what can happen to two TrainJobs and a quota for one, with the reconcilers themselves: the API server
// is a fake client, and its watches, Kueue, JobSet, the garbage collector, the kubelet and the users are actors that may take
// their next step at any moment. The manager may lose its memory before any of its writes, and the answers to them.
//
// Every order of steps up to a depth is tried (make model DEPTH=…). In every state, no pod runs that no admitted Workload stands
// for, no quota is given twice, and no start is without an admission of its own, or with another's settings. From every state,
// when all faults end, everything comes to its end: no TrainJob is lost, and no quota is held for nothing.
package model
