package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// standing returns the TrainJob of a sweep that is there: "runs", "ended", or what it waits for and has noted, such as
// "a-0=any|a-0=gone".
func standing(state string) *api.TrainJob {
	job := &api.TrainJob{}
	waits, noted, isGated := strings.Cut(state, "|")
	switch {
	case state == "ended":
		job.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobComplete, Status: metav1.ConditionTrue}}
	case isGated:
		job.Spec.Suspend = ptr.To(true)
		job.Annotations = map[string]string{api.AfterAnnotation: waits, api.AfterEndedAnnotation: noted,
			constants.AdmissionGatedByAnnotation: after.Gate}
	}
	return job
}

// TestInLanes holds what those of a sweep that are created again wait for: for each that may run beside them.
func TestInLanes(t *testing.T) {
	cases := map[string]struct {
		reason string
		atMost int
		there  map[string]string
		want   map[string]string // what the missing ones run after
	}{
		"new": {reason: "each after those before it", atMost: 2, want: map[string]string{
			"a-0": "", "a-1": "", "a-2": "a-0", "a-3": "a-1", "a-4": "a-2 a-0", "a-5": "a-3 a-1"}},
		"all at once": {reason: "there are no lanes", want: map[string]string{
			"a-0": "", "a-1": "", "a-2": "", "a-3": "", "a-4": "", "a-5": ""}},
		"the first is gone, and its lane goes on": {reason: "it runs last", atMost: 2, there: map[string]string{
			"a-1": "ended", "a-2": "runs", "a-3": "runs", "a-4": "a-2=any,a-0=any|a-0=gone", "a-5": "a-3=any,a-1=any|a-1=ok"},
			want: map[string]string{"a-0": "a-4 a-2"}},
		"two of a lane are gone": {reason: "one after the other", atMost: 2, there: map[string]string{
			"a-1": "ended", "a-3": "runs", "a-4": "runs", "a-5": "a-3=any,a-1=any|a-1=ok"},
			want: map[string]string{"a-0": "a-4", "a-2": "a-0 a-4"}},
		"the next wait for it": {reason: "it keeps its place", atMost: 2, there: map[string]string{
			"a-1": "ended", "a-2": "a-0=any|", "a-3": "runs", "a-4": "a-2=any,a-0=any|", "a-5": "ended"},
			want: map[string]string{"a-0": ""}},
		"one in the middle": {reason: "it is between", atMost: 1, there: map[string]string{
			"a-0": "ended", "a-1": "runs", "a-3": "a-2=any,a-1=any,a-0=any|a-0=ok", "a-4": "a-3=any,a-2=any|",
			"a-5": "a-4=any|"},
			want: map[string]string{"a-2": "a-1"}},
		"all of the lane have ended": {reason: "it runs at once", atMost: 2, there: map[string]string{
			"a-0": "ended", "a-1": "ended", "a-2": "ended", "a-3": "ended", "a-5": "ended"}, want: map[string]string{"a-4": ""}},
		"the last are gone": {reason: "behind what runs", atMost: 2, there: map[string]string{
			"a-0": "ended", "a-1": "ended", "a-2": "runs", "a-3": "ended"}, want: map[string]string{"a-4": "a-2", "a-5": ""}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			base := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte("metadata: {name: a}\nspec: {}"), &base.Object); err != nil {
				t.Fatal(err)
			}
			jobs, err := swept(base, []variable{{"x", []string{"0", "1", "2", "3", "4", "5"}}}, c.atMost)
			if err != nil {
				t.Fatal(err)
			}
			there := map[string]*api.TrainJob{}
			for name, state := range c.there {
				there[name] = standing(state)
			}
			order := inLanes(jobs, there, c.atMost)
			got, place := map[string]string{}, map[string]int{}
			for at, i := range order {
				place[jobs[i].GetName()] = at
			}
			for _, job := range jobs {
				if there[job.GetName()] != nil {
					continue
				}
				names := strings.ReplaceAll(strings.ReplaceAll(job.GetAnnotations()[api.AfterAnnotation], "=any", ""), ",", " ")
				got[job.GetName()] = names
				for _, before := range strings.Fields(names) {
					if place[before] > place[job.GetName()] {
						t.Errorf("%s is before %s, which it waits for", job.GetName(), before)
					}
				}
			}
			if !reflect.DeepEqual(got, c.want) || len(order) != len(jobs) || !slices.Contains(order, 0) {
				t.Errorf("%s: got %v, want %v, in order %v", c.reason, got, c.want, order)
			}
		})
	}
}
