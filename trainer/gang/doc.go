// Package gang puts the pods of a started TrainJob into groups of Kubernetes' own Workload and PodGroup API
// (scheduling.k8s.io, KEP-4671 in its decoupled form), so that kube-scheduler places all pods of a group or none.
//
// setting.go says whether and how, plan.go which pods belong together, version.go and a file for each version of the API
// make and read the objects, served.go finds out what the API server serves, and gangs.go makes, keeps and removes them.
package gang
