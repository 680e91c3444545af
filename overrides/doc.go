// Package overrides holds the override contract of a TrainJob: which entries it has, who owns them, and what they make
// of its runtime.
//
// Everything here is a pure function of objects. The merge of runtimePatches is the one that Kubeflow Trainer v2.2.1 and
// later do (Kubernetes' strategic merge patch of the JobSet template, entry after entry), and the ML policies are
// Trainer's own plugins, so that what is computed here is what Trainer will run.
package overrides
