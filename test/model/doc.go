// Package model explores the interleavings of two TrainJobs that want a quota for one. The reconcilers are the real
// ones. The API server is a fake client. Watches, Kueue, JobSet, the garbage collector, the kubelet and users are
// actors that may take their next step at any time. The manager may crash after any of its writes, and may lose the
// response to one.
//
// The search visits every order of steps up to a depth (make model DEPTH=…). In every state, no pod runs without an
// admitted Workload, no quota is used twice, and no TrainJob is started without an admission or with another
// admission's flavor. From every sampled state, when faults stop, every TrainJob finishes and no Workload keeps its
// quota.
package model
