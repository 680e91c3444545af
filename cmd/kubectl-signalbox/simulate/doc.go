// Package simulate answers what Kueue would do, by running Kueue's own scheduler in this process on a copy of a
// cluster's queues and Workloads. It writes nothing to a cluster.
package simulate
