package trainer

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// leaf is a field of a type that can be large: a string, a list or a map.
type leaf struct {
	path, json []string // from the root, by the names of Go and of JSON
	of         reflect.Type
}

// unsized are types whose size isn't their user's choice.
var unsized = []reflect.Type{
	reflect.TypeFor[resource.Quantity](), reflect.TypeFor[metav1.Time](), reflect.TypeFor[intstr.IntOrString](),
	reflect.TypeFor[metav1.ManagedFieldsEntry](),
}

// leaves returns each field of each type once, by the first path that reaches it.
func leaves(of reflect.Type, within leaf, seen map[string]bool) []leaf {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || slices.Contains(unsized, of) {
		return nil
	}
	var found []leaf
	for f := range of.Fields() {
		key := of.String() + "." + f.Name
		if !f.IsExported() || seen[key] || f.Name == "ManagedFields" {
			continue
		}
		seen[key] = true
		at := leaf{append(slices.Clone(within.path), f.Name), slices.Clone(within.json), f.Type}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			at.json = append(at.json, name)
		}
		if kind := kindOf(f.Type); kind == reflect.String || kind == reflect.Slice || kind == reflect.Map {
			found = append(found, at)
		}
		found = append(found, leaves(f.Type, at, seen)...)
	}
	return found
}

// field returns the leaf's field of a root. Lists on the way have one element at least, the first of which has it.
func (l leaf) field(root reflect.Value) reflect.Value {
	v := root
	for i, name := range l.path {
		v = v.FieldByName(name)
		for i < len(l.path)-1 && (v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice) {
			if v.Kind() == reflect.Pointer {
				v = allocate(v)
				continue
			}
			if v.Len() == 0 {
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
				identify(v.Index(0), "a")
			}
			v = v.Index(0)
		}
	}
	if v.Kind() == reflect.Pointer {
		v = allocate(v)
	}
	return v
}

// allocate returns what a pointer points to.
func allocate(v reflect.Value) reflect.Value {
	if v.IsNil() {
		v.Set(reflect.New(v.Type().Elem()))
	}
	return v.Elem()
}

// most returns the largest size of the leaf: as large as the CRD and the test allow.
func (l leaf) most(schema *apiextensions.JSONSchemaProps) int {
	for _, name := range l.json {
		for schema != nil && schema.Items != nil {
			schema = schema.Items.Schema
		}
		if schema == nil {
			break
		}
		property, found := schema.Properties[name]
		if !found { // of a map, or of what the CRD keeps without a schema
			schema = nil
			break
		}
		schema = &property
	}
	size, limit := costBytes, (*int64)(nil)
	if kindOf(l.of) != reflect.String {
		size = costElements
	}
	if schema != nil {
		limit = cmp.Or(schema.MaxItems, schema.MaxLength, schema.MaxProperties)
	}
	return int(min(int64(size), ptr.Deref(limit, int64(size))))
}

// kindOf returns the kind of a type, or of what it points to.
func kindOf(t reflect.Type) reflect.Kind {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind()
}

// enlarge adds that many bytes or elements to a value.
func enlarge(v reflect.Value, size int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + strings.Repeat("a", size))
	case reflect.Slice:
		for i := range size {
			element := reflect.New(v.Type().Elem()).Elem()
			identify(element, fmt.Sprintf("a%d", i))
			v.Set(reflect.Append(v, element))
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for i := range size {
			value := reflect.New(v.Type().Elem()).Elem()
			identify(value, "a")
			if value.Type() == reflect.TypeFor[resource.Quantity]() {
				value.Set(reflect.ValueOf(resource.MustParse("1")))
			}
			v.SetMapIndex(reflect.ValueOf(fmt.Sprintf("example.com/a%d", i)).Convert(v.Type().Key()), value)
		}
	default:
	}
}

// identify sets what tells an element of a list from the others.
func identify(v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		identify(v.Elem(), name)
	case reflect.Struct:
		for _, key := range []string{"Name", "Key", "Manager", "MountPath", "DevicePath", "IP", "TopologyKey", "Type"} {
			if f := v.FieldByName(key); f.IsValid() && f.Kind() == reflect.String {
				f.SetString(name)
				return
			}
		}
	default:
	}
}
