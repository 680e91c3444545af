package main

import (
	"bytes"
	"reflect"
	"testing"
)

// TestKnots holds what counts as a knot.
func TestKnots(t *testing.T) {
	uses := func(files ...string) map[string]bool {
		used := map[string]bool{}
		for _, f := range files {
			used[f] = true
		}
		return used
	}
	cases := map[string]struct {
		reason string
		graph  graph
		want   [][]string
	}{
		"a chain": {"nobody is used back", graph{"a": uses("b", "c"), "b": uses("c")}, nil},
		"a pair":  {"two files use each other", graph{"a": uses("b"), "b": uses("a")}, [][]string{{"a", "b"}}},
		"a long way": {
			"the circle has three files", graph{"a": uses("b"), "b": uses("c"), "c": uses("a")}, [][]string{{"a", "b", "c"}},
		},
		"two circles": {
			"they share a file", graph{"a": uses("b"), "b": uses("a", "c"), "c": uses("b")}, [][]string{{"a", "b", "c"}},
		},
		"apart": {
			"one uses the other",
			graph{"a": uses("b", "c"), "b": uses("a"), "c": uses("d"), "d": uses("c")},
			[][]string{{"c", "d"}, {"a", "b"}},
		},
	}
	for name, c := range cases {
		if got := c.graph.knots(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %s: got %v, want %v", name, c.reason, got, c.want)
		}
	}
}

// TestPrintKnots holds that no file may be in a knot.
func TestPrintKnots(t *testing.T) {
	cases := map[string]struct {
		knots map[string][][]string
		want  bool
	}{
		"none": {nil, false},
		"two":  {map[string][][]string{"a": {{"one.go", "other.go"}}}, true},
	}
	for name, c := range cases {
		var out bytes.Buffer
		if got := printKnots(&out, c.knots); got != c.want {
			t.Errorf("%s: exceeded %t, want %t: %s", name, got, c.want, &out)
		}
	}
}
