// Package machine makes machines of namespaces: one that a whole control plane with its nodes runs in, and in there one
// for each node. Each has its own processes, mounts and network, so that the kernel removes all of them with the
// machine's first process, however that ends. What the kernel leaves, control groups, a janitor removes.
//
// It needs root and Linux. Nothing of the host's network is touched, and no program but this one is needed.
package machine
