// Package gang assigns the pods of a started TrainJob to PodGroups of Kubernetes' Workload and PodGroup API
// (scheduling.k8s.io, KEP-4671, decoupled form), so that kube-scheduler places all pods of a group or none.
//
//   - setting.go reads whether and how a TrainJob uses groups; group.go derives the groups from a JobSet, and plan.go
//     names their objects.
//   - version.go is the interface to one version of the API; each version has a file of its own.
//   - discovery.go finds the version that the API server serves, prober.go remembers it, and served.go caches the
//     objects.
//   - gangs.go decides and creates the groups at a start (create.go); keep.go restores and deletes them later,
//     release.go lets the rest of a gang be placed that can't be placed again, and condition.go reports on them.
package gang
