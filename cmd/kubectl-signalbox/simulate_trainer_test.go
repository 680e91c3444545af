package main

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// mpi is a runtime of which the bundled Trainer runs other pods than Kubeflow Trainer.
const mpi = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: mpi}
spec:
  mlPolicy: {numNodes: 2, mpi: {runLauncherAsNode: true}}
  template:
    spec:
      replicatedJobs:
      - name: launcher
        replicas: 1
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {template: {spec: {containers: [{name: node, image: i}]}}}
      - name: node
        replicas: 1
        template: {spec: {template: {spec: {containers: [{name: node, image: i}]}}}}
`

// crdWith is the TrainJobs' CRD with some fields of spec.
func crdWith(fields string) string {
	return `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trainjobs.trainer.kubeflow.org}
spec: {group: trainer.kubeflow.org, scope: Namespaced, names: {plural: trainjobs, kind: TrainJob},
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {properties: {spec: {properties: ` +
		fields + `}}}}}]}`
}

// TestSimulateTrainer holds that the pods are those of the Trainer that the cluster has.
func TestSimulateTrainer(t *testing.T) {
	const job = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: one, labels: {kueue.x-k8s.io/queue-name: spot}}
spec: {runtimeRef: {name: mpi}, trainer: {resourcesPerNode: {requests: {nvidia.com/gpu: 1}}}}
`
	const bundled, kubeflow = `"launcher": 1`, `"launcher": 2`
	for name, c := range map[string]struct{ crd, want string }{
		"unknown":          {"", bundled},
		"the bundled one":  {crdWith("{podTemplateOverrides: {}, runtimePatches: {}}"), bundled},
		"Kubeflow Trainer": {crdWith("{runtimePatches: {}}"), kubeflow},
		"an older one":     {crdWith("{podTemplateOverrides: {}}"), kubeflow},
	} {
		manifests := []string{spot, mpi}
		if c.crd != "" {
			manifests = append(manifests, c.crd)
		}
		tr := newTrial(t, interceptor.Funcs{}, manifests...)
		err := tr.try("simulate", "-o", "json", "-f", written(t, job))
		if err != nil || !strings.Contains(tr.out.String(), c.want) {
			t.Errorf("%s: got %v, %s, want %s", name, err, tr.out.String(), c.want)
		}
	}
	tr := newTrial(t, interceptor.Funcs{}, spot, mpi, crdWith("{runtimePatches: {}}"))
	part := strings.Replace(job, "name: one,", `name: one, annotations: {kueue.x-k8s.io/job-min-parallelism: "1"},`, 1)
	if err := tr.try("simulate", "-f", written(t, part)); err == nil || !strings.Contains(err.Error(), "fewer nodes") {
		t.Errorf("Kubeflow Trainer has no partial admission: got %v", err)
	}
}
