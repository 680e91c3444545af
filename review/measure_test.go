package review

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestElements(t *testing.T) {
	for text, want := range map[string]int{
		`{}`: 0, `[]`: 0, `[ ]`: 0, `[1]`: 1, `[1,2]`: 2, `[[],[]]`: 2, `[[1],[2,3]]`: 5, `{"a":[1,2],"b":{"c":[{}]}}`: 3,
		`"[1,2]"`: 0, `["a,b","\"[,"]`: 2, `["\\"]`: 1, `["\\\"",1]`: 2, ` [ 1 , 2 ] `: 2, `{"a":"]","b":[true,null]}`: 2,
		`17`: 0, `null`: 0, "[\n{\"a\":1},\n{\"a\":2}\n]": 2,
	} {
		if got, err := Elements([]byte(text)); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
		if !json.Valid([]byte(text)) {
			t.Errorf("%s is no JSON: what is counted of it says nothing", text)
		}
	}
	deep := strings.Repeat("[", 300) + strings.Repeat("]", 300)
	for _, text := range []string{``, `[`, `{`, `"`, `"\`, `[}`, `{]`, `]`, `[]]`, `,`, `[1]2`, `[] []`, deep} {
		if got, err := Elements([]byte(text)); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
}

// TestObjectElements holds what counts as an element of the objects that a review is about: nothing else, wherever it
// is hidden.
func TestObjectElements(t *testing.T) {
	for text, want := range map[string]counts{
		`{"request":{"object":{"a":[1,2]},"oldObject":{"b":[{"c":[3]}]},"groups":[4,5]}}`: {elements: 6, objects: 4},
		`{"request":{"object":[1,2]}}`:                                           {elements: 2, objects: 2},
		`{"request":{"\u006fbject":[1]}}`:                                        {elements: 1, objects: 1},
		`{"request":{"object":[1],"object":[2]},"request":{"oldObject":[3,[]]}}`: {elements: 4, objects: 4},
		`{"request":{"Object":[1],"object":{},"a":{"object":[2]}}}`:              {elements: 2},
		`{"object":[1],"Request":{"object":[2]},"request":[{"object":[3]}]}`:     {elements: 4},
		`[{"request":{"object":[1]}}]`:                                           {elements: 2},
		`{"request":{"object":"[1,2]","userInfo":{"extra":{"object":[1]}}}}`:     {elements: 1},
		`{"a":{"request":{"object":[1]}},"request":{"object":1,"b":[2]}}`:        {elements: 2},
	} {
		if got, err := measure([]byte(text)); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}

// TestHugeQuantities holds that a quantity that costs much to decode is found wherever one is decoded, and that nothing
// else is taken for one.
func TestHugeQuantities(t *testing.T) {
	huge := []string{
		`"1e-100000000"`, `"1E9999"`, `1e+99999`, ` -1.5e1000`, `"  1e9999 "`, `"1\u0065100000"`, `"` + strings.Repeat("9", 65) + `"`,
		`.5e0001`,
	}
	for _, q := range huge {
		for _, text := range []string{
			`{"requests":{"cpu":%}}`, `{"a":[{"limits":{"memory":"1Gi","cpu" : % }}]}`, `{"emptyDir":{"sizeLimit":%}}`,
			`{"\u0072equests":{"cpu":%}}`, `{"requests":{"a":{"b":[1]},"cpu":%}}`, `{"divisor":%,"a":1}`,
		} {
			text = strings.ReplaceAll(text, "%", q)
			if !json.Valid([]byte(text)) && !strings.Contains(q, ".5e") {
				t.Errorf("%s is no JSON", text)
			}
			if n, err := Elements([]byte(text)); err == nil || !strings.Contains(err.Error(), "too many digits") {
				t.Errorf("%s: got %d, %v", text, n, err)
			}
		}
		for _, text := range []string{
			`{"args":[%]}`, `{"labels":{"commit":%}}`, `{"requests":[%]}`, `{"requests":{"a":{"b":%}}}`, `%`, `{"limits":1,"a":%}`,
		} {
			if _, err := Elements([]byte(strings.ReplaceAll(text, "%", q))); err != nil {
				t.Errorf("%s: got %v", text, err)
			}
		}
	}
	if _, err := Elements([]byte(`{"a":[{"limits":{"cpu":"1e9999"}}]}`)); err == nil ||
		!strings.HasPrefix(err.Error(), "a[].limits.cpu: ") {
		t.Errorf("got %v, which doesn't say where", err)
	}
	for _, q := range []string{`"1e999"`, `1`, `"1.5Gi"`, `"100m"`, `"2Ei"`, `"5E"`, `null`, `"nvidia.com/gpu-name-e10000"`, `""`} {
		if _, err := Elements([]byte(`{"requests":{"cpu":` + q + `}}`)); err != nil {
			t.Errorf("%s: got %v", q, err)
		}
	}
}

// TestQuantities holds that every quantity of what the webhooks decode is found by its name.
func TestQuantities(t *testing.T) {
	quantity, seen := reflect.TypeFor[resource.Quantity](), map[reflect.Type]bool{}
	var walk func(of reflect.Type, name string)
	walk = func(of reflect.Type, name string) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice:
			if of.Kind() == reflect.Slice && of.Elem() == quantity {
				t.Errorf("%s is a list of quantities", name)
			}
			walk(of.Elem(), name)
		case reflect.Map:
			if of.Elem() != quantity {
				walk(of.Elem(), name)
			} else if !namesQuantities([]byte(name)) {
				t.Errorf("%s is a map of quantities", name)
			}
		case reflect.Struct:
			if of == quantity && !namesQuantity([]byte(name)) {
				t.Errorf("%s is a quantity", name)
			}
			if of == quantity || seen[of] {
				return
			}
			seen[of] = true
			for i := range of.NumField() {
				field := of.Field(i)
				tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
				walk(field.Type, cmp.Or(tag, name))
			}
		}
	}
	for _, kind := range []any{
		api.TrainJob{}, trainerapi.TrainJob{}, trainerapi.TrainingRuntime{}, trainerapi.ClusterTrainingRuntime{},
		kueue.Workload{},
	} {
		walk(reflect.TypeOf(kind), "")
	}
	if len(seen) < 100 {
		t.Errorf("%d types were looked at", len(seen))
	}
}

func TestMember(t *testing.T) {
	const text = ` { "a" : {"b": [1, {"c": 2}], "d": "x}"}, "e" :null, "a\"": 3, "twice": 1, "twice": {"b": 2} } `
	for path, want := range map[string]string{
		"a": `{"b": [1, {"c": 2}], "d": "x}"}`, "a.b": `[1, {"c": 2}]`, "a.d": `"x}"`, "e": `null`, "twice": `{"b": 2}`,
		"f": "", "a.f": "", "a.b.c": "", "e.f": "",
	} {
		if got := string(Member([]byte(text), strings.Split(path, ".")...)); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	for _, text := range []string{``, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a" 1}`, `{a:1}`, `[{"a":1}]`} {
		if got := Member([]byte(text), "b"); got != nil {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

// FuzzMeasure holds that what is measured of JSON is what decoding it finds.
func FuzzMeasure(f *testing.F) {
	for _, text := range []string{`{}`, `[1,[2,{"a":[]}]]`, `{"a":[1,2],"b":"[\""}`, `{"a":{"b":{"c":1}}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var content any
		valid := json.Unmarshal(text, &content) == nil
		n, err := Elements(text)
		if valid && err == nil && n != count(content) && !bytes.Contains(text, []byte(`":`)) {
			t.Errorf("%s: counted %d elements, it has %d", text, n, count(content))
		}
		if valid && err == nil && n < count(content) {
			t.Errorf("%s: counted %d elements, and decoding makes %d", text, n, count(content)) // of equal keys, the last
		}
		Member(text, "a", "b")
		uidOf(text)
	})
}

func count(content any) int {
	n := 0
	switch c := content.(type) {
	case []any:
		n = len(c)
		for _, e := range c {
			n += count(e)
		}
	case map[string]any:
		for _, e := range c {
			n += count(e)
		}
	}
	return n
}
