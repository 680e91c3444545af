package trainer

import (
	"cmp"
	"context"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/podsets"
)

// What a TrainJob costs at each look grows with its size, whichever field makes it large. Limits bound the size.
const (
	// mostPerByte and mostPerElement are how many bytes may be allocated for each byte of a string, and for each element
	// of a list or a map.
	mostPerByte, mostPerElement = 100, 128 << 10
	// mostGrowth is how much more the second half of a size may cost than the quarter before it: 2 is linear, 4 square.
	// Buffers grow by steps, and Trainer's torch plugin has all names of a list in the error about each of them (2.9).
	mostGrowth = 3.0
	// noise is how many bytes of a half may come by steps.
	noise = 256 << 10
	// costBytes and costElements are the size of a string, and of a list or a map. A quarter, a half and the whole of it
	// are compared. A CRD may allow less.
	costBytes, costElements = 32 << 10, 200
)

// subject is an object with one large field.
type subject struct {
	job     *api.TrainJob
	runtime *trainerapi.TrainingRuntimeSpec
}

// entryForCost has an entry of each shape, so that the fields of each are merged.
const entryForCost = `
spec:
  trainer: {numNodes: 2}
  initializer: {dataset: {storageUri: "hf://a/b"}}
  runtimePatches:
  - manager: a.com/a
    trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: {
      volumes: [{name: mine}], containers: [{name: sidecar}]}}}}}]}}}
  templateOverrides:
  - manager: a.com/a
    pod: [{targetJobs: [{name: node}], spec: {volumes: [{name: mine}], containers: [{name: sidecar}]}}]
  podTemplateOverrides:
  - targetJobs: [{name: node}]
    spec: {volumes: [{name: mine}], containers: [{name: sidecar}]}
`

func newSubject(t testing.TB) subject {
	job := jobOf(t, "torch", "{}")
	if err := yaml.UnmarshalStrict([]byte(entryForCost), job); err != nil {
		t.Fatal(err)
	}
	return subject{job.DeepCopy(), runtimeOf(t, "{numNodes: 2, torch: {}}", lastingVolume)}
}

// mutate is what the mutating webhooks compute of a TrainJob, before the CRD's rules apply.
func (s subject) mutate(_ *Builder, limits overrides.Limits) {
	tell(func() field.ErrorList { return limits.CheckSize(s.job, legacy.EveryEntry(s.job)) },
		func() field.ErrorList { return overrides.CheckEntries(s.job, dialect.Bundled.Entries(s.job)) })
}

// look is what the validating webhooks and a reconcile compute of a TrainJob, until it is rejected.
func (s subject) look(b *Builder, limits overrides.Limits) {
	ctx, d := context.Background(), dialect.Bundled
	var effective *overrides.Effective
	tell(
		func() field.ErrorList { return limits.CheckSize(s.job, legacy.EveryEntry(s.job)) },
		func() field.ErrorList { return limits.CheckRuntime(s.job, s.runtime, legacy.EveryEntry(s.job)) },
		func() field.ErrorList { return overrides.Check(s.job, s.runtime, d.Entries(s.job)) },
		func() field.ErrorList { _, errs := b.Validate(ctx, nil, s.job, s.runtime); return errs },
		func() field.ErrorList {
			var err error
			effective, err = overrides.NewMemo(64<<20).Compute(d.Rules, s.job, s.runtime, d.Others(s.job))
			return asErrors(err)
		},
		func() field.ErrorList {
			return limits.CheckBuilt(s.job.Namespace, s.runtime, legacy.EveryEntry(s.job), effective, true)
		},
		func() field.ErrorList {
			_, err := podsets.Of(effective, podsets.Features{TopologyAware: true})
			return asErrors(err)
		},
		func() field.ErrorList { _, err := b.Build(ctx, s.job, s.runtime); return asErrors(err) },
	)
}

// tell takes steps until one has errors, and writes their text.
func tell(steps ...func() field.ErrorList) {
	for _, step := range steps {
		if errs := step(); len(errs) > 0 {
			_ = errs.ToAggregate().Error()
			return
		}
	}
}

func asErrors(err error) field.ErrorList {
	if err == nil {
		return nil
	}
	return field.ErrorList{asFieldError(err)}
}

// allocated returns how many bytes each function allocates. The first is called once before, to fill the pools, so that
// it must need the largest. There is a pool for each processor, and a garbage collection empties them.
func allocated(functions ...func()) []int64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	functions[0]()
	var all []int64
	for _, f := range functions {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		all = append(all, int64(after.TotalAlloc-before.TotalAlloc))
	}
	return all
}

// costLine is what a field costs.
type costLine struct {
	name   string
	unit   string
	each   float64 // bytes allocated for one more byte or element
	growth float64 // of that, from one half of the size to the other
}

// costOf compares a quarter, a half and the whole of what a field may have. look returns a look at an object of a size.
func costOf(l leaf, most int, look func(size int) func()) costLine {
	line := costLine{name: strings.Join(l.json, "."), unit: "byte"}
	if kindOf(l.of) != reflect.String {
		line.unit = "element"
	}
	costs := allocated(look(most/4*4), look(most/4*2), look(most/4))
	line.each = float64(costs[0]-costs[1]) / float64(most/4*2)
	line.growth = 2
	if costs[0]-costs[1] > noise {
		line.growth = float64(costs[0]-costs[1]) / float64(max(costs[1]-costs[2], 1))
	}
	return line
}

// excessive reports whether a field costs too much.
func (l costLine) excessive() bool {
	most := float64(mostPerByte)
	if l.unit == "element" {
		most = mostPerElement
	}
	return l.each > most || l.growth > mostGrowth
}

func schemaOf(t *testing.T, kind string) *apiextensions.JSONSchemaProps {
	t.Helper()
	data := must(os.ReadFile("../config/crd/trainer.kubeflow.org_" + kind + ".yaml"))
	crd := read[apiextensions.CustomResourceDefinition](t, string(data))
	return ptr.To(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"])
}

// Whichever field is large, a look at a TrainJob allocates no more than mostPerByte for each byte and mostPerElement
// for each element, and no more for the later ones than for the first. So limits.specBytes and limits.elements bound
// it all. Allocations are compared, because times vary. -v prints the fields that cost most.
func TestCostIsLinear(t *testing.T) {
	b := testBuilder(t, testClient(t))
	limits := overrides.Limits{Pods: 5000, SpecBytes: 1 << 30, Elements: 1 << 30, GracePeriodSeconds: 3600}
	job, runtime := reflect.TypeFor[api.TrainJobSpec](), reflect.TypeFor[trainerapi.TrainingRuntimeSpec]()
	for _, c := range []struct {
		name   string
		of     reflect.Type
		field  func(subject, leaf) reflect.Value
		schema *apiextensions.JSONSchemaProps
		look   func(subject, *Builder, overrides.Limits)
	}{
		{"a TrainJob, mutated", job, subject.ofJob, nil, subject.mutate},
		{"a TrainJob", job, subject.ofJob, schemaOf(t, "trainjobs"), subject.look},
		{"a runtime", runtime, subject.ofRuntime, schemaOf(t, "trainingruntimes"), subject.look},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lines []costLine
			for _, l := range leaves(c.of, leaf{}, map[string]bool{}) {
				line := costOf(l, l.most(c.schema), func(size int) func() {
					s := newSubject(t)
					enlarge(c.field(s, l), size)
					return func() { c.look(s, b, limits) }
				})
				lines = append(lines, line)
				if line.excessive() {
					t.Errorf("%s costs %.0f bytes a further %s, %.2f times as much in the later half", line.name, line.each,
						line.unit, line.growth)
				}
			}
			slices.SortFunc(lines, func(a, b costLine) int {
				return cmp.Or(strings.Compare(a.unit, b.unit), cmp.Compare(b.each, a.each))
			})
			shown := map[string]int{}
			for _, l := range lines {
				if shown[l.unit]++; shown[l.unit] <= 10 {
					t.Logf("%8.0f bytes a further %-7s (%5.2f) %s", l.each, l.unit, l.growth, l.name)
				}
			}
			t.Logf("%d fields", len(lines))
		})
	}
}

func (s subject) ofJob(l leaf) reflect.Value { return l.field(reflect.ValueOf(&s.job.Spec).Elem()) }

func (s subject) ofRuntime(l leaf) reflect.Value { return l.field(reflect.ValueOf(s.runtime).Elem()) }
