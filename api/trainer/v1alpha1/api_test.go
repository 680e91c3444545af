package v1alpha1

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

func TestStateOf(t *testing.T) {
	suspended := trainerapi.TrainJobSuspended
	cases := map[string]struct {
		reason string
		// conditions are true, or false after a "!".
		conditions    []string
		active, ready int32
		want          TrainJobState
	}{
		"new":      {"nothing is ready", nil, 0, 0, StateStarting},
		"starting": {"pods are active, none is ready", nil, 2, 0, StateStarting},
		"running":  {"a pod is ready", nil, 2, 1, StateRunning},
		"complete": {"the end counts more than pods", []string{trainerapi.TrainJobComplete}, 1, 1, StateComplete},
		"failed": {"the end counts more than suspension", []string{suspended, trainerapi.TrainJobFailed}, 0, 0,
			StateFailed},
		"stopping": {"pods have not ended", []string{suspended, ConditionAdmitted}, 1, 1, StateStopping},
		"blocked": {"it can't be queued", []string{suspended, ConditionBlocked, ConditionAdmitted}, 0, 0,
			StateBlocked},
		"admitted": {"it starts next", []string{suspended, ConditionQuotaReserved, ConditionAdmitted}, 0, 0,
			StateAdmitted},
		"quota reserved": {"checks are missing", []string{suspended, ConditionQuotaReserved}, 0, 0, StateQuotaReserved},
		"queued":         {"it waits for quota", []string{suspended, "!" + ConditionQuotaReserved}, 0, 0, StateQueued},
		"suspended":      {"it is in no queue", []string{suspended}, 0, 0, StateSuspended},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			status := &trainerapi.TrainJobStatus{JobsStatus: []trainerapi.JobStatus{
				{Name: "initializer"}, {Name: "node", Active: &c.active, Ready: &c.ready},
			}}
			for _, condition := range c.conditions {
				condition, isFalse := strings.CutPrefix(condition, "!")
				s := metav1.ConditionTrue
				if isFalse {
					s = metav1.ConditionFalse
				}
				status.Conditions = append(status.Conditions, metav1.Condition{Type: condition, Status: s})
			}
			if got := StateOf(status); got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
		})
	}
}

func TestUnmarshalJSON(t *testing.T) {
	cases := map[string]struct {
		reason, text string
		// nodes is that of the TrainJob, as a sign that the rest was read.
		nodes   int32
		invalid bool
	}{
		"now":          {"a number", `{"spec":{"trainer":{"numNodes":2,"numProcPerNode":4}}}`, 2, false},
		"v2.1":         {"a word is dropped", `{"spec":{"trainer":{"numNodes":3,"numProcPerNode":"auto"}}}`, 3, false},
		"a wrong type": {"nothing is dropped", `{"spec":{"trainer":{"numNodes":"many"}}}`, 0, true},
		"two wrong types": {"a word is not the only error",
			`{"spec":{"trainer":{"numNodes":"many","numProcPerNode":"auto"}}}`, 0, true},
		"no object at all":  {"the first error is returned", `["spec"]`, 0, true},
		"a list for a word": {"only a word is dropped", `{"spec":{"trainer":{"numProcPerNode":["auto"]}}}`, 0, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var job TrainJob
			err := json.Unmarshal([]byte(c.text), &job)
			if (err != nil) != c.invalid {
				t.Fatalf("%s: got %v", c.reason, err)
			}
			if err == nil && ptr.Deref(job.Spec.Trainer.NumNodes, 0) != c.nodes {
				t.Errorf("%s: got %+v", c.reason, job.Spec.Trainer)
			}
		})
	}
}

func TestUpstream(t *testing.T) {
	job := &TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "train", Labels: map[string]string{"a": "b"}}}
	job.Spec.RuntimeRef.Name = "torch"
	upstream := job.Upstream()
	upstream.Labels["a"] = "c"
	if upstream.Name != "train" || upstream.Spec.RuntimeRef.Name != "torch" || job.Labels["a"] != "c" {
		t.Errorf("the two share what they have in common: got %+v", upstream)
	}
}

func TestScheme(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{
		"TrainJob", "TrainJobList", "TrainingRuntime", "TrainingRuntimeList", "ClusterTrainingRuntime",
		"ClusterTrainingRuntimeList",
	} {
		o, err := scheme.New(trainerapi.GroupVersion.WithKind(kind))
		if err != nil {
			t.Fatal(err)
		}
		fill(reflect.ValueOf(o).Elem(), 12)
		if got := o.DeepCopyObject(); !reflect.DeepEqual(got, o) {
			t.Errorf("a copy of a %s differs from it", kind)
		}
	}
}

func TestDeepCopy(t *testing.T) {
	for _, o := range []any{
		&ClusterTrainingRuntime{},
		&ClusterTrainingRuntimeList{},
		&ContainerOverride{},
		&JobTemplateHistoryEntry{},
		&PodSpecOverlay{},
		&PodSpecOverride{},
		&PodTemplateHistoryEntry{},
		&PodTemplateOverride{},
		&PodTemplateSpecOverride{},
		&TargetJob{},
		&TemplateOverride{},
		&TrainJob{},
		&TrainJobList{},
		&TrainJobSpec{},
		&TrainJobStatus{},
		&TrainingRuntime{},
		&TrainingRuntimeList{},
	} {
		v := reflect.ValueOf(o)
		fill(v.Elem(), 10)
		if got := v.MethodByName("DeepCopy").Call(nil)[0].Interface(); !reflect.DeepEqual(got, o) {
			t.Errorf("a copy of a %T differs from it", o)
		}
		missing := reflect.Zero(v.Type())
		if got := missing.MethodByName("DeepCopy").Call(nil)[0]; !got.IsNil() {
			t.Errorf("a copy of a nil %T is not nil", o)
		}
	}
}

// fill sets every exported field to a value that isn't zero, down to a depth.
func fill(v reflect.Value, depth int) {
	if depth == 0 {
		return
	}
	switch o := v.Addr().Interface().(type) {
	case *metav1.Time:
		*o = metav1.NewTime(time.Unix(1_700_000_000, 0))
		return
	case *resource.Quantity:
		*o = *resource.NewQuantity(8, resource.DecimalSI)
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(3)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth-1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth-1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth-1)
		fill(value, depth-1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), depth-1)
			}
		}
	}
}
