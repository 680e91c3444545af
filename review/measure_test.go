package review

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
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
