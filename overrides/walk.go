package overrides

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// walk calls visit for every value of an API object that is set, with its path and the name of its field, in the order
// of the fields and of a map's keys. value is a pointer to it. The values within it are visited unless visit returns
// false.
func walk(path *field.Path, object any, visit func(path *field.Path, name string, value any) bool) {
	walkValue(path, "", reflect.ValueOf(object), visit)
}

func walkValue(path *field.Path, name string, v reflect.Value, visit func(*field.Path, string, any) bool) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	} else if v.IsZero() {
		return
	}
	if v = addressable(v); !visit(path, name, v.Addr().Interface()) {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			walkField(path, name, v.Type().Field(i), v.Field(i), visit)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			walkValue(path.Index(i), name, v.Index(i), visit)
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			walkValue(path.Key(key.String()), name, v.MapIndex(key), visit)
		}
	default:
	}
}

// addressable returns a value, or a copy of one that has no address, as those of a map.
func addressable(v reflect.Value) reflect.Value {
	if v.CanAddr() {
		return v
	}
	copied := reflect.New(v.Type()).Elem()
	copied.Set(v)
	return copied
}

// walkField walks a field of a struct by its name in JSON.
func walkField(
	path *field.Path, within string, f reflect.StructField, v reflect.Value, visit func(*field.Path, string, any) bool,
) {
	if !f.IsExported() || v.IsZero() {
		return
	}
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	if f.Anonymous && (name == "" || strings.Contains(options, "inline")) {
		walkValue(path, within, v, visit)
		return
	}
	walkValue(path.Child(name), name, v, visit)
}

func find(replicatedJobs []jobset.ReplicatedJob, name string) *jobset.ReplicatedJob {
	return pipeline.Find(replicatedJobs, func(rj *jobset.ReplicatedJob) bool { return rj.Name == name })
}

func findContainer(containers []corev1.Container, name string) *corev1.Container {
	return pipeline.Find(containers, func(c *corev1.Container) bool { return c.Name == name })
}

func names(replicatedJobs []jobset.ReplicatedJob) []string {
	all := utilslices.Map(replicatedJobs, func(rj *jobset.ReplicatedJob) string { return rj.Name })
	slices.Sort(all)
	return all
}

func hasMetadata(m *metav1.ObjectMeta) bool { return m != nil && len(m.Labels)+len(m.Annotations) > 0 }

// MetadataPatch returns the labels and annotations of an override's metadata, the only part that Trainer reads.
func MetadataPatch(meta *metav1.ObjectMeta) *metav1.ObjectMeta {
	if meta == nil {
		return nil
	}
	return &metav1.ObjectMeta{Labels: meta.Labels, Annotations: meta.Annotations}
}
