package overrides_test

import (
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// errors checks errors against a part of their text; "" is for none.
func errorsAre(t *testing.T, reason string, errs fmt.Stringer, want string) {
	t.Helper()
	if got := errs.String(); (want == "") != (got == "") || !strings.Contains(got, want) {
		t.Errorf("%s: got %q, want %q", reason, got, want)
	}
}

// text is the text of errors; "" for none.
type text struct{ error }

func (t text) String() string {
	if t.error == nil {
		return ""
	}
	return t.Error()
}

// checkBuilt returns the errors about one ReplicatedJob, which what is of the runtime's template surrounds.
func checkBuilt(t *testing.T, l overrides.Limits, job, template, rj string) fmt.Stringer {
	t.Helper()
	trainJob := &api.TrainJob{Spec: must[api.TrainJobSpec](t, job)}
	trainJob.Namespace = "team-a"
	runtime := must[trainerapi.TrainingRuntimeSpec](t, `{template: `+template+`}`)
	e := &overrides.Effective{
		ReplicatedJobs: must[[]jobset.ReplicatedJob](t, `[`+rj+`]`), Annotations: runtime.Template.Annotations,
	}
	return text{l.CheckBuilt(trainJob.Namespace, &runtime, legacy.EveryEntry(trainJob), e, false).ToAggregate()}
}

// ofPod is a ReplicatedJob whose pods have a spec.
func ofPod(spec string) string {
	return `{name: node, replicas: 1, template: {spec: {template: {spec: ` + spec + `}}}}`
}

func TestCheckBuilt(t *testing.T) {
	const of = "replicatedJobs[node].template.spec.template.spec."
	cases := map[string]struct{ reason, pod, want string }{
		"nothing odd": {"", `{terminationGracePeriodSeconds: 600, containers: [{name: node}]}`, ""},
		"a long goodbye": {"quota is held until then", `{terminationGracePeriodSeconds: 100000000, containers: []}`,
			of + "terminationGracePeriodSeconds: Invalid value: 100000000"},
		"none": {"the API server would forget the pod at once",
			`{terminationGracePeriodSeconds: 0, containers: []}`, "must be 1 or more"},
		"one of a probe": {"it takes the place of the pod's",
			`{containers: [{name: node, livenessProbe: {terminationGracePeriodSeconds: 601}}]}`,
			"containers[node].livenessProbe.terminationGracePeriodSeconds"},
		"resources of the pod": {"quota is for containers", `{resources: {requests: {cpu: "90"}}, containers: []}`,
			"resources: Forbidden"},
		"claims": {"nobody counts them", `{resourceClaims: [{name: gpu}], containers: []}`, "resourceClaims: Forbidden"},
		"a node": {"the flavor decides", `{nodeName: n, containers: []}`, "nodeName: Forbidden"},
		"seconds": {"its Trainer's Jobs don't replace a pod that terminates",
			`{tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 1}], containers: []}`, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errorsAre(t, c.reason, checkBuilt(t, limits, `{}`, `{}`, ofPod(c.pod)), c.want)
		})
	}
	short := overrides.Limits{Pods: 1, GracePeriodSeconds: 29}
	errorsAre(t, "Kubernetes' default is 30", checkBuilt(t, short, `{}`, `{}`, ofPod(`{containers: []}`)),
		of+"terminationGracePeriodSeconds: Required value: without it a pod may take 30 seconds")
	errorsAre(t, "29 are set", checkBuilt(t, short, `{}`, `{}`, ofPod(
		`{terminationGracePeriodSeconds: 29, containers: []}`)), "")
	claims := &overrides.Effective{ReplicatedJobs: must[[]jobset.ReplicatedJob](t, `[`+
		ofPod(`{resourceClaims: [{name: gpu}], containers: []}`)+`]`)}
	if errs := limits.CheckBuilt("", &trainerapi.TrainingRuntimeSpec{}, nil, claims, true); len(errs) > 0 {
		t.Errorf("claims that Kueue counts are refused: %v", errs)
	}
}

func TestCheckReplicatedJobs(t *testing.T) {
	cases := map[string]struct{ reason, rj, want string }{
		"none": {"JobSet would run one", `{name: node, replicas: 0}`, "replicatedJobs[node].replicas: Invalid value: 0"},
		"too many": {"an ML policy has made them", `{name: node, replicas: 2, template: {spec: {parallelism: 51}}}`,
			"limits.pods"},
		"beyond 32 bits": {"the product is counted in full",
			`{name: node, replicas: 65536, template: {spec: {parallelism: 65536}}}`, "4294967296"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errorsAre(t, c.reason, checkBuilt(t, limits, `{}`, `{}`, c.rj), c.want)
		})
	}
}

func TestCheckMetadata(t *testing.T) {
	const (
		plain    = `{name: node, replicas: 1}`
		finalize = `{finalizers: [example.com/kept]}`
		owned    = `{ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: a, uid: b}]}`
	)
	entry := func(where string) string {
		return `{runtimePatches: [{manager: a.com/a, trainingRuntimeSpec: {template: ` + where + `}}]}`
	}
	cases := map[string]struct{ reason, job, template, rj, want string }{
		"of the pods": {"the Job controller copies it", `{}`, `{}`,
			`{name: node, replicas: 1, template: {spec: {template: {metadata: ` + finalize + `}}}}`,
			`replicatedJobs[node].template.spec.template.metadata.finalizers: Invalid value: ["example.com/kept"]`},
		"of the Job": {"a JobSet may copy it one day", `{}`, `{}`,
			`{name: node, replicas: 1, template: {metadata: ` + finalize + `}}`,
			"replicatedJobs[node].template.metadata.finalizers"},
		"of the JobSet": {"a Trainer may copy it", `{}`, `{metadata: ` + finalize + `}`, plain, "template.metadata.finalizers"},
		"of the JobSet, by an entry": {"the same", entry(`{metadata: ` + finalize + `}`), `{}`, plain,
			"spec.runtimePatches[a.com/a].trainingRuntimeSpec.template.metadata.finalizers"},
		"an owner of the pods": {"pods count by their owners", `{}`, `{}`,
			`{name: node, replicas: 1, template: {spec: {template: {metadata: ` + owned + `}}}}`,
			`replicatedJobs[node].template.spec.template.metadata.ownerReferences[0]: Invalid value: "ConfigMap a"`},
		"an owner of the Job":    {"the same", `{}`, `{}`, `{name: node, replicas: 1, template: {metadata: ` + owned + `}}`, "ownerReferences"},
		"an owner of the JobSet": {"the same", `{}`, `{metadata: ` + owned + `}`, plain, "ownerReferences"},
		"labels and annotations": {"they keep nothing", entry(`{metadata: {labels: {a: b}}}`), `{metadata: {annotations: {a: b}}}`,
			plain, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errorsAre(t, c.reason, checkBuilt(t, limits, c.job, c.template, c.rj), c.want)
		})
	}
	// What an entry sets reaches the templates by a merge.
	job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, entry(`{spec: {replicatedJobs: [{name: node, template: {spec: `+
		`{template: {metadata: `+finalize+`}}}}]}}`))}
	runtime := must[trainerapi.TrainingRuntimeSpec](t, `{template: {spec: {replicatedJobs: [`+ofPod(`{containers: []}`)+`]}}}`)
	e, err := dialect.Bundled.Compute(job, &runtime, dialect.Bundled.Entries(job))
	if err != nil {
		t.Fatal(err)
	}
	if errs := limits.CheckBuilt(job.Namespace, &runtime, legacy.EveryEntry(job), e, false); len(errs) != 1 {
		t.Errorf("a finalizer that an entry adds to the pods is refused once: got %v", errs)
	}
}

func TestCheckTolerations(t *testing.T) {
	const of = "tolerations[0].tolerationSeconds: Invalid value: "
	pod := func(toleration, more string) string {
		return `{name: node, replicas: 1, template: {spec: {` + more + `template: {spec: {containers: [], tolerations: [` +
			toleration + `]}}}}}`
	}
	cases := map[string]struct{ reason, rj, want string }{
		"a second": {"a pod a second", pod(`{operator: Exists, effect: NoExecute, tolerationSeconds: 1}`, ""), of + "1: "},
		"an hour": {"two pods at a time are too many",
			pod(`{key: gpu, operator: Exists, effect: NoExecute, tolerationSeconds: 3600}`, ""), of + "3600: "},
		"none":    {"it evicts at once", pod(`{operator: Exists, effect: NoExecute, tolerationSeconds: 0}`, ""), of + "0: "},
		"forever": {"nothing is evicted", pod(`{operator: Exists, effect: NoExecute}`, ""), ""},
		"a lost node": {"nothing is placed there again",
			pod(`{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}`, ""), ""},
		"a lost node, soon": {"its pods would still terminate",
			pod(`{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 29}`, ""), of + "29: "},
		"replaced after its end": {"there is no second pod",
			pod(`{operator: Exists, effect: NoExecute, tolerationSeconds: 1}`, `podReplacementPolicy: Failed, `), ""},
		"with a failure policy": {"it implies that",
			pod(`{operator: Exists, effect: NoExecute, tolerationSeconds: 1}`, `podFailurePolicy: {rules: []}, `), ""},
		"replaced by choice": {"that is the default",
			pod(`{operator: Exists, effect: NoExecute, tolerationSeconds: 1}`, `podReplacementPolicy: TerminatingOrFailed, `),
			of + "1: "},
	}
	beside := limits
	beside.PodsReplaced = true
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errorsAre(t, c.reason, checkBuilt(t, beside, `{}`, `{}`, c.rj), c.want)
		})
	}
}

func TestCheckAffinity(t *testing.T) {
	const term = "topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {a: b}}"
	anti := func(kind, terms string) string {
		return ofPod(`{containers: [], affinity: {` + kind + `: {` + terms + `}}}`)
	}
	const required = "requiredDuringSchedulingIgnoredDuringExecution"
	const of = "affinity.podAntiAffinity." + required + "[0]."
	cases := map[string]struct{ reason, rj, want string }{
		"its own":         {"one pod a node", anti("podAntiAffinity", required+`: [{`+term+`}]`), ""},
		"its own, named":  {"the same", anti("podAntiAffinity", required+`: [{`+term+`, namespaces: [team-a]}]`), ""},
		"another's":       {"a pod of it would wait", anti("podAntiAffinity", required+`: [{`+term+`, namespaces: [team-a, team-b]}]`), of + `namespaces: Invalid value: ["team-a","team-b"]`},
		"all":             {"all pods would wait", anti("podAntiAffinity", required+`: [{`+term+`, namespaceSelector: {}}]`), of + "namespaceSelector"},
		"some":            {"labels of a namespace change", anti("podAntiAffinity", required+`: [{`+term+`, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team-a}}}]`), of + `namespaceSelector: Invalid value: "kubernetes.io/metadata.name=team-a"`},
		"the second term": {"each counts", anti("podAntiAffinity", required+`: [{`+term+`}, {`+term+`, namespaceSelector: {}}]`), "[1].namespaceSelector"},
		"preferred":       {"it ranks nodes only", anti("podAntiAffinity", `preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {`+term+`, namespaceSelector: {}}}]`), ""},
		"affinity":        {"it binds its own pods only", anti("podAffinity", required+`: [{`+term+`, namespaceSelector: {}}]`), ""},
		"no affinity":     {"nothing is asked of others", ofPod(`{containers: []}`), ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errorsAre(t, c.reason, checkBuilt(t, limits, `{}`, `{}`, c.rj), c.want)
		})
	}
}

func TestCheckExclusive(t *testing.T) {
	const (
		exclusive  = "alpha.jobset.sigs.k8s.io/exclusive-topology: rack"
		bySelector = `alpha.jobset.sigs.k8s.io/node-selector: "true"`
		refused    = `replicatedJobs[node].template.metadata.annotations[alpha.jobset.sigs.k8s.io/exclusive-topology]: ` +
			`Invalid value: "rack"`
	)
	cases := map[string]struct{ reason, ofJobSet, ofJob, ofPod, want string }{
		"of the JobSet":               {"JobSet copies it to the pods", exclusive, "", "", refused},
		"of the Job":                  {"the same", "", exclusive, "", refused},
		"of the pod":                  {"JobSet's webhook for pods reads it there", "", "", exclusive, refused},
		"by labels of nodes":          {"it adds a node selector", exclusive + ", " + bySelector, "", "", ""},
		"of the Job, by labels":       {"the same", "", exclusive + ", " + bySelector, "", ""},
		"of the pod, by labels":       {"the same", "", "", exclusive + ", " + bySelector, ""},
		"by labels, of another":       {"JobSet copies both of one or none", bySelector, exclusive, "", refused},
		"of two, one by labels":       {"the pod has both", exclusive, exclusive + ", " + bySelector, "", ""},
		"the choice without topology": {"there is nothing exclusive", bySelector, bySelector, bySelector, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errorsAre(t, c.reason, checkBuilt(t, limits, `{}`, `{metadata: {annotations: {`+c.ofJobSet+`}}}`, fmt.Sprintf(
				`{name: node, replicas: 1, template: {metadata: {annotations: {%s}}, spec: {template: {metadata: {annotations: {%s}}}}}}`,
				c.ofJob, c.ofPod)), c.want)
		})
	}
}
