package store

import (
	"fmt"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// operation is one operation of a JSON patch (RFC 6902).
type operation = jsonpatch.Operation

// guard makes a patch fail on a TrainJob with another UID, and makes it a conflict if the TrainJob has changed since
// that version.
func guard(uid types.UID, version string) []operation {
	return []operation{
		{Operation: "test", Path: "/metadata/uid", Value: uid},
		{Operation: "replace", Path: "/metadata/resourceVersion", Value: version},
	}
}

// entryOf returns the operation that writes the integration's entry: in its place, or after all others.
func entryOf(s *admission.Start) operation {
	const list = "/spec/" + overrides.RuntimePatches
	switch {
	case s.At >= 0:
		return operation{Operation: "replace", Path: fmt.Sprintf("%s/%d", list, s.At), Value: s.Entry}
	case s.Others:
		return operation{Operation: "add", Path: list + "/-", Value: s.Entry}
	}
	return operation{Operation: "add", Path: list, Value: []any{s.Entry}}
}

// pinOf returns the operation that writes the pinned runtime.
func pinOf(s *admission.Start) operation {
	const annotations = "/metadata/annotations"
	if !s.Annotated {
		return operation{Operation: "add", Path: annotations, Value: map[string]string{PinAnnotation: s.Pin}}
	}
	pointer := annotations + "/" + strings.ReplaceAll(PinAnnotation, "/", "~1")
	return operation{Operation: "add", Path: pointer, Value: s.Pin}
}

// resume returns the operation that starts a TrainJob.
func resume() operation { return operation{Operation: "add", Path: "/spec/suspend", Value: false} }

// nameOnly returns a TrainJob of which nothing but the name is set: what a merge patch starts from.
func nameOnly(job *api.TrainJob) *api.TrainJob {
	return &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name}}
}

// annotate sets an annotation in the version of a TrainJob that was read.
func annotate(o client.Object, read *api.TrainJob, name, value string) {
	o.SetUID(read.UID)
	o.SetResourceVersion(read.ResourceVersion)
	o.SetAnnotations(map[string]string{name: value})
}
