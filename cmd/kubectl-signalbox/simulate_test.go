package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/kueue/pkg/features"
)

const blockedJob = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: blocked, namespace: team, uid: blocked, labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {suspend: true, runtimeRef: {name: torch}}
status: {conditions: [{type: Blocked, status: "True", reason: RuntimeNotFound, message: there is no runtime x., lastTransitionTime: "2026-11-24T10:00:01Z"}]}`

// podlessJob is a TrainJob that was started, and whose pods the namespace refuses.
const podlessJob = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: podless, namespace: team, uid: podless, labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {suspend: false, runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}}
status: {conditions: [{type: Blocked, status: "True", reason: QuotaExceeded, message: "exceeded quota: few", lastTransitionTime: "2026-11-24T10:00:01Z"}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: wl-podless, namespace: team, uid: wl-podless, creationTimestamp: "2026-11-24T10:00:00Z", ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: podless, uid: podless, controller: true}]}
spec:
  queueName: queue
  active: true
  podSets: [{name: node, count: 1, template: {spec: {containers: [{name: node, image: i, resources: {requests: {nvidia.com/gpu: 1}}}]}}}]
status:
  admission: {clusterQueue: cq, podSetAssignments: [{name: node, count: 1, flavors: {nvidia.com/gpu: a100}, resourceUsage: {nvidia.com/gpu: 1}}]}
  conditions:
  - {type: QuotaReserved, status: "True", reason: QuotaReserved, message: "", lastTransitionTime: "2026-11-24T10:00:01Z"}
  - {type: Admitted, status: "True", reason: Admitted, message: "", lastTransitionTime: "2026-11-24T10:00:01Z"}`

// TestSimulateSeveral holds that TrainJobs of one file, or of a directory, are simulated together, in their order.
func TestSimulateSeveral(t *testing.T) {
	const job = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {%s, labels: {kueue.x-k8s.io/queue-name: spot}}
spec: {runtimeRef: {name: torch}, trainer: {numNodes: 1, resourcesPerNode: {requests: {nvidia.com/gpu: %d}}}}
`
	text := fmt.Sprintf(job, "name: one", 40) + "---\n" + fmt.Sprintf(job, "generateName: two-", 40) + "---\n" +
		fmt.Sprintf(job, "name: three", 24) + "---\n" + fmt.Sprintf(job, "name: four", 65)
	file := written(t, text)
	for _, path := range []string{file, filepath.Dir(file)} {
		tr := newTrial(t, interceptor.Funcs{}, spot)
		if err := tr.try("simulate", "-f", path); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"team/one would be admitted now", "team/two-simulated-2 waits on spot for nvidia.com/gpu until team/one has ended",
			"team/three would be admitted now", "team/four is never admitted",
		} {
			if !strings.Contains(tr.out.String(), want) {
				t.Errorf("got\n%s\nwant %q", tr.out.String(), want)
			}
		}
		if err := tr.try("simulate", "-f", path, "-o", "json"); err != nil ||
			!strings.HasPrefix(tr.out.String(), "[") || strings.Count(tr.out.String(), `"verdict"`) != 4 {
			t.Errorf("got %v, %s", err, tr.out.String())
		}
	}
	tr := newTrial(t, interceptor.Funcs{}, spot)
	err := tr.try("simulate", "-f", written(t, fmt.Sprintf(job, "name: one", -1)))
	if err == nil || !strings.Contains(err.Error(), `TrainJob one: spec.trainer.resourcesPerNode.requests[nvidia.com/gpu]`) {
		t.Errorf("got %v", err)
	}
}

// A file is simulated as if it were submitted.
func TestSimulateFile(t *testing.T) {
	const manifest = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: new, labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {runtimeRef: {name: torch}, trainer: {numNodes: 1, resourcesPerNode: {requests: {nvidia.com/gpu: 2}}}}
`
	withDefault := strings.Split(strings.NewReplacer("name: cq", "name: other", "clusterQueue: cq", "clusterQueue: other",
		"name: queue", "name: default", `total: "8"`, `total: "0"`).Replace(
		strings.Join(strings.Split(base, "\n---\n")[2:4], "\n---\n")), "\n---\n")
	cases := map[string]struct {
		reason, text, out, err string
		more                   []string
	}{
		"waits": {"the queue is full", manifest, "team/new waits", "", nil},
		"no queue": {
			"it isn't queued",
			strings.Replace(manifest, "kueue.x-k8s.io/queue-name: queue", "a: b", 1),
			"",
			"has no label kueue.x-k8s.io/queue-name",
			nil,
		},
		"the default queue": {
			"as Kueue has it",
			strings.Replace(manifest, "kueue.x-k8s.io/queue-name: queue", "a: b", 1),
			"team/new would be admitted now",
			"",
			withDefault,
		},
		"in part": {
			"as few as its annotation says",
			strings.NewReplacer("numNodes: 1", "numNodes: 8", "labels: {kueue.x-k8s.io/queue-name: queue}",
				`annotations: {kueue.x-k8s.io/job-min-parallelism: "2"}`).Replace(manifest),
			"team/new would be admitted now",
			"",
			withDefault,
		},
		"a list": {"as kubectl get -o yaml writes it",
			"apiVersion: v1\nkind: List\nitems:\n- {kind: ConfigMap}\n- " + strings.ReplaceAll(strings.TrimSpace(manifest), "\n",
				"\n  "), "team/new waits", "", nil},
		"no runtime": {"named", strings.Replace(manifest, "{name: torch}", "{name: other}", 1), "", "doesn't exist", nil},
		"no job":     {"named", "kind: Other\n", "", "has no TrainJob", nil},
		"no YAML":    {"named", "a: [", "", "job.yaml", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, interceptor.Funcs{}, c.more...)
			err := tr.try("simulate", "-f", written(t, c.text))
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("%s: got %v, want %q", c.reason, err, c.err)
			}
			if !strings.Contains(tr.out.String(), c.out) {
				t.Errorf("%s: got %q", c.reason, tr.out.String())
			}
		})
	}
	if err := newTrial(t, interceptor.Funcs{}).try("simulate", "-f", "/none"); err == nil {
		t.Error("there is no such file")
	}
}

// TestGatesOfSimulation holds that simulate runs with the feature gates on the command line of the cluster's Kueue.
func TestGatesOfSimulation(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.PartialAdmission, true)
	tr := newTrial(t, interceptor.Funcs{}, `
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: kueue-system, name: kueue-controller-manager}
spec: {template: {spec: {containers: [{name: manager, args: ["--feature-gates=PartialAdmission=false,Later=true"]}]}}}`)
	if err := tr.try("list"); err != nil || !features.Enabled(features.PartialAdmission) {
		t.Errorf("list: %v, and the gates are set by it", err)
	}
	if err := tr.try("simulate", "first"); err != nil {
		t.Fatal(err)
	}
	if features.Enabled(features.PartialAdmission) || !strings.Contains(tr.errs.String(), "Later") {
		t.Errorf("PartialAdmission is on, or a gate that isn't known is passed over: %s", tr.errs.String())
	}
}

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
