package main

import (
	"bytes"
	"reflect"
	"strings"
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

// TestPrintKnots holds which knots exceed the bounds.
func TestPrintKnots(t *testing.T) {
	of := func(size int) []string { return strings.Fields(strings.Repeat("file.go ", size)) }
	cases := map[string]struct {
		knots map[string][][]string
		want  bool
	}{
		"none":     {nil, false},
		"large":    {map[string][][]string{"a": {of(maxKnot + 1)}}, true},
		"small":    {map[string][][]string{"a": {of(maxKnot)}}, false},
		"too many": {map[string][][]string{"a": {of(2), of(maxKnot)}, "b": {of(maxKnotted - maxKnot)}}, true},
	}
	for name, c := range cases {
		var out bytes.Buffer
		if got := printKnots(&out, c.knots); got != c.want {
			t.Errorf("%s: exceeded %t, want %t: %s", name, got, c.want, &out)
		}
	}
}
