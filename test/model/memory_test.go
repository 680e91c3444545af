package model

import (
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unsafe"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/discovery"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// unserved is the discovery of an API server without the PodGroup API.
func unserved() discovery.DiscoveryInterface { return kubefake.NewClientset().Discovery() }

// memories returns the fields that carry state from one reconcile to the next: maps of values, or values. Everything
// else that a manager stores is a pure cache.
func memories(m *manager) []reflect.Value {
	of := func(o any, fields ...string) reflect.Value {
		v := reflect.ValueOf(o).Elem()
		for _, field := range fields {
			if v.Kind() == reflect.Pointer {
				v = v.Elem()
			}
			v = v.FieldByName(field)
			if !v.IsValid() {
				panic("no field " + field + ": adapt the model to the manager's state")
			}
		}
		return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
	}
	return []reflect.Value{
		of(m.integration, "memory", "jobs"), of(m.integration, "memory", "ended"), of(m.integration, "memory", "since"),
		of(m.writer, "written"), of(m.jobSets, "created"), of(m.trainer, "memory", "pending"),
	}
}

// remember copies the state of one manager to another.
func remember(from, to *manager) {
	source, target := memories(from), memories(to)
	for i, value := range source {
		if value.Kind() != reflect.Map {
			target[i].Set(value)
			continue
		}
		for _, key := range value.MapKeys() {
			target[i].SetMapIndex(key, value.MapIndex(key))
		}
	}
}

// fingerprint identifies a state. It ignores times, and resource versions but for whether a cached one is stale.
func (w *world) fingerprint() uint64 {
	h := fnv.New64a()
	now := map[types.UID]client.Object{}
	for _, kind := range slices.Sorted(maps.Keys(stored)) {
		for _, o := range w.all(kind) {
			now[o.GetUID()] = o
			fmt.Fprintln(h, kind, describe(o))
		}
	}
	for _, kind := range watched {
		for _, o := range w.cache[kind] {
			there := now[o.GetUID()]
			if there != nil && there.GetResourceVersion() == o.GetResourceVersion() {
				fmt.Fprintln(h, "cached", kind, o.GetName())
				continue
			}
			fmt.Fprintln(h, "late", kind, describe(o))
		}
	}
	for _, name := range names {
		_, due := w.again[name]
		fmt.Fprintln(h, name, w.queue[name], due)
	}
	for i, value := range memories(w.manager) {
		fmt.Fprintln(h, i, w.recall(value))
	}
	fmt.Fprintln(h, w.budget, w.rejects, w.ledger)
	return h.Sum64()
}

// recall formats a field of the manager's state without times; of a version it writes whether the cache is behind it.
func (w *world) recall(value reflect.Value) string {
	var says []string
	switch {
	case value.Kind() == reflect.Map:
		for _, key := range value.MapKeys() {
			job, _ := key.Interface().(types.NamespacedName) // or a namespace
			says = append(says, fmt.Sprint(key, w.recallFields(job, value.MapIndex(key))))
		}
		slices.Sort(says)
	case value.Kind() == reflect.Int:
		says = []string{fmt.Sprint(value.Int())}
	}
	return strings.Join(says, ",")
}

func (w *world) recallFields(key types.NamespacedName, value reflect.Value) string {
	if value.Kind() != reflect.Struct {
		return fmt.Sprint(value)
	}
	var b strings.Builder
	for i := range value.NumField() {
		field := value.Field(i)
		switch {
		case field.Type() == reflect.TypeFor[time.Time]() || field.Kind() == reflect.Map:
		case field.Kind() == reflect.Struct:
			fmt.Fprint(&b, w.recallFields(key, field), " ")
		case value.Type().Field(i).Name == "version":
			fmt.Fprint(&b, w.behind(key, field.String()), " ")
		default:
			fmt.Fprint(&b, field, " ")
		}
	}
	return b.String()
}

// behind reports whether the cached TrainJob is older than a version.
func (w *world) behind(key types.NamespacedName, version string) bool {
	for _, o := range w.cache["TrainJob"] {
		if o.GetName() == key.Name {
			order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), version)
			return err == nil && order < 0
		}
	}
	return false
}

// describe formats an object without its version and times.
func describe(o client.Object) string {
	c := o.DeepCopyObject().(client.Object)
	c.SetResourceVersion("")
	c.SetManagedFields(nil)
	var b strings.Builder
	dump(&b, reflect.ValueOf(c).Elem())
	return b.String()
}

// dump formats a value without times.
func dump(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			b.WriteString("-")
			return
		}
		b.WriteString("&")
		dump(b, v.Elem())
	case reflect.Struct:
		name := v.Type().Name()
		if name == "Time" {
			return
		}
		if name == "Quantity" {
			fmt.Fprint(b, v.Addr().MethodByName("String").Call(nil)[0])
			return
		}
		b.WriteString("{")
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && !v.Field(i).IsZero() {
				b.WriteString(v.Type().Field(i).Name + ":")
				dump(b, v.Field(i))
				b.WriteString(" ")
			}
		}
		b.WriteString("}")
	case reflect.Slice, reflect.Array:
		b.WriteString("[")
		for i := range v.Len() {
			dump(b, v.Index(i))
			b.WriteString(" ")
		}
		b.WriteString("]")
	case reflect.Map:
		var entries []string
		for _, key := range v.MapKeys() {
			var e strings.Builder
			fmt.Fprint(&e, key, ":")
			value := reflect.New(v.Type().Elem()).Elem() // what a map holds has no address
			value.Set(v.MapIndex(key))
			dump(&e, value)
			entries = append(entries, e.String())
		}
		slices.Sort(entries)
		b.WriteString("map" + strings.Join(entries, ","))
	case reflect.Interface:
		if !v.IsNil() {
			fmt.Fprint(b, v.Elem())
		}
	default:
		fmt.Fprint(b, v)
	}
}
