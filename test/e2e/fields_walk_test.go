package e2e

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fieldChange is an object with one field changed.
type fieldChange struct {
	path   string
	object client.Object
}

// fieldPath is a field by the steps that lead to it: a struct's field, the first element of a list, a key of a map.
type fieldPath []fieldStep

type fieldStep struct {
	field int
	name  string
}

// String returns the path as an API names it; a list's element is [0].
func (p fieldPath) String() string {
	var names strings.Builder
	for _, s := range p {
		if s.name != "" && !strings.HasPrefix(s.name, "[") && names.Len() > 0 {
			names.WriteString(".")
		}
		names.WriteString(s.name)
	}
	return names.String()
}

// leafTypes are the types that are a value in JSON.
var leafTypes = []reflect.Type{
	reflect.TypeFor[resource.Quantity](), reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](),
	reflect.TypeFor[metav1.Duration](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.FieldsV1](),
	reflect.TypeFor[runtime.RawExtension](),
}

// ownWalk are the types whose fields metadataChanges changes.
var ownWalk = []reflect.Type{reflect.TypeFor[metav1.TypeMeta](), reflect.TypeFor[metav1.ObjectMeta]()}

// leaves calls visit with each path to a value that a type has, in the order of its fields. Of the spec of a pod
// template it visits one leaf for each field: the template is compared as a whole.
func leaves(t reflect.Type, at fieldPath, inTemplate bool, visit func(fieldPath) bool) bool {
	switch {
	case slices.Contains(leafTypes, t):
		return visit(at)
	case slices.Contains(ownWalk, t):
		return true
	}
	switch t.Kind() {
	case reflect.Pointer:
		return leaves(t.Elem(), at, inTemplate, visit)
	case reflect.Slice:
		return leaves(t.Elem(), append(slices.Clone(at), fieldStep{name: "[0]"}), inTemplate, visit)
	case reflect.Map:
		return visit(append(slices.Clone(at), fieldStep{name: "[]"}))
	case reflect.Struct:
		return structLeaves(t, at, inTemplate, visit)
	default:
		return visit(at)
	}
}

func structLeaves(t reflect.Type, at fieldPath, inTemplate bool, visit func(fieldPath) bool) bool {
	inTemplate = inTemplate || t == reflect.TypeFor[corev1.PodTemplateSpec]()
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || !field.IsExported() {
			continue
		}
		one := visit
		if inTemplate && t == reflect.TypeFor[corev1.PodSpec]() {
			one = func(p fieldPath) bool { visit(p); return false }
		}
		more := leaves(field.Type, append(slices.Clone(at), fieldStep{field: i, name: name}), inTemplate, one)
		if !more && !inTemplate {
			return false
		}
	}
	return true
}

// resolve returns the value at a path and makes what leads to it.
func resolve(v reflect.Value, path fieldPath) (value reflect.Value, put func()) {
	put = func() {}
	for _, step := range path {
		for v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		switch v.Kind() {
		case reflect.Slice:
			if v.Len() == 0 {
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			}
			v = v.Index(0)
		case reflect.Map:
			v, put = entry(v)
		default:
			v = v.Field(step.field)
		}
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	return v, put
}

// entry returns a copy of a map's first value, and what puts it back; an empty map gets one.
func entry(m reflect.Value) (value reflect.Value, put func()) {
	if m.IsNil() {
		m.Set(reflect.MakeMap(m.Type()))
	}
	key := reflect.ValueOf("example.com/changed").Convert(m.Type().Key())
	keys := m.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	value = reflect.New(m.Type().Elem()).Elem()
	if len(keys) > 0 {
		key = keys[0]
		value.Set(m.MapIndex(key))
	}
	return value, func() { m.SetMapIndex(key, value) }
}

// alter gives a leaf another value.
func alter(v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *resource.Quantity:
		x.Add(resource.MustParse("1"))
		*x = resource.MustParse(x.String()) // without what is cached of the value before
	case *metav1.Time:
		*x = metav1.NewTime(x.Add(time.Hour).Truncate(time.Second))
	case *metav1.MicroTime:
		*x = metav1.NewMicroTime(x.Add(time.Hour).Truncate(time.Second))
	case *metav1.Duration:
		x.Duration += time.Second
	case *intstr.IntOrString:
		*x = intstr.FromInt32(x.IntVal + 1)
	case *runtime.RawExtension:
		x.Raw = []byte(`{"changed":true}`)
	default:
		alterKind(v)
	}
}

func alterKind(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint8:
		v.SetUint(v.Uint() + 1)
	case reflect.Slice: // of a map's value
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	default:
		panic(fmt.Sprintf("%s: add how to change it", v.Type()))
	}
}

// fieldChanges returns a copy of the object for each field of its type, metadata aside, with that field changed, and
// for each that is set one without it.
func fieldChanges(o client.Object) []fieldChange {
	var all []fieldChange
	leaves(reflect.TypeOf(o).Elem(), nil, false, func(path fieldPath) bool {
		changed := o.DeepCopyObject().(client.Object)
		leaf, put := resolve(reflect.ValueOf(changed), path)
		alter(leaf)
		put()
		all = append(all, fieldChange{path.String(), changed})
		without := o.DeepCopyObject().(client.Object)
		if clearField(reflect.ValueOf(without), path) {
			all = append(all, fieldChange{path.String() + " removed", without})
		}
		return true
	})
	return all
}

// clearField removes what a path leads to, from a map all entries. It returns false if it isn't set.
func clearField(v reflect.Value, path fieldPath) bool {
	var last reflect.Value
	for _, step := range path {
		for v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return false
			}
			v = v.Elem()
		}
		switch v.Kind() {
		case reflect.Slice:
			if v.Len() == 0 {
				return false
			}
			v = v.Index(0)
		case reflect.Map:
			if v.Len() == 0 {
				return false
			}
			v.Set(reflect.Zero(v.Type()))
			return true
		default:
			v = v.Field(step.field)
			last = v
		}
	}
	if !last.IsValid() || last.IsZero() {
		return false
	}
	last.Set(reflect.Zero(last.Type()))
	return true
}

// metadataChanges returns copies of the object with other labels, annotations, finalizers and owners: each that it has,
// and each of the keys, is set, changed and removed.
func metadataChanges(o client.Object, keys []string) []fieldChange {
	var all []fieldChange
	add := func(path string, change func(client.Object)) {
		changed := o.DeepCopyObject().(client.Object)
		change(changed)
		all = append(all, fieldChange{path, changed})
	}
	maps := map[string]func(client.Object) (map[string]string, func(map[string]string)){
		"labels": func(o client.Object) (map[string]string, func(map[string]string)) { return o.GetLabels(), o.SetLabels },
		"annotations": func(o client.Object) (map[string]string, func(map[string]string)) {
			return o.GetAnnotations(), o.SetAnnotations
		},
	}
	for name, of := range maps {
		present, _ := of(o)
		known := slices.Clone(keys)
		for key := range present {
			known = append(known, key)
		}
		for _, key := range known {
			path := fmt.Sprintf("metadata.%s[%s]", name, key)
			edit := func(value *string) func(client.Object) {
				return func(o client.Object) {
					m, set := of(o)
					if m == nil {
						m = map[string]string{}
					}
					delete(m, key)
					if value != nil {
						m[key] = *value
					}
					set(m)
				}
			}
			other := present[key] + "7"
			add(path, edit(&other))
			if _, found := present[key]; found {
				add(path+" removed", edit(nil))
			}
		}
	}
	return append(all, ownerChanges(o)...)
}

// ownerChanges returns copies of the object with other finalizers and owners, and with another generateName.
func ownerChanges(o client.Object) []fieldChange {
	var all []fieldChange
	add := func(path string, change func(client.Object)) {
		changed := o.DeepCopyObject().(client.Object)
		change(changed)
		all = append(all, fieldChange{path, changed})
	}
	for _, f := range []string{"example.com/mine", metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents} {
		if !slices.Contains(o.GetFinalizers(), f) {
			add("metadata.finalizers["+f+"]", func(o client.Object) { o.SetFinalizers(append(o.GetFinalizers(), f)) })
		}
	}
	for i, f := range o.GetFinalizers() {
		add("metadata.finalizers["+f+"] removed", func(o client.Object) {
			o.SetFinalizers(slices.Delete(o.GetFinalizers(), i, i+1))
		})
	}
	add("metadata.ownerReferences removed", func(o client.Object) { o.SetOwnerReferences(nil) })
	for name, owner := range map[string]metav1.OwnerReference{
		"Job": {APIVersion: "batch/v1", Kind: "Job"}, "JobSet": {APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet"},
		"TrainJob":  {APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob"},
		"Workload":  {APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload"},
		"ConfigMap": {APIVersion: "v1", Kind: "ConfigMap"},
	} {
		owner.Name, owner.UID = "other", types.UID("made-up")
		add("metadata.ownerReferences["+name+"]", func(o client.Object) {
			o.SetOwnerReferences(append(o.GetOwnerReferences(), owner))
		})
	}
	for i := range reflect.TypeFor[metav1.OwnerReference]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[metav1.OwnerReference]().Field(i).Tag.Get("json"), ",")
		add("metadata.ownerReferences[0]."+name, func(o client.Object) {
			owners := o.GetOwnerReferences()
			v, _ := resolve(reflect.ValueOf(&owners[0]), fieldPath{{field: i}})
			alter(v)
			o.SetOwnerReferences(owners)
		})
	}
	add("metadata.generateName", func(o client.Object) { o.SetGenerateName(o.GetGenerateName() + "x") })
	return all
}
