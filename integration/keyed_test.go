package integration

import (
	"encoding/json"
	"testing"
)

func TestKeepOwn(t *testing.T) {
	const own = `{"manager":"kueue.x-k8s.io/manager","future":"kept","trainingRuntimeSpec":{"template":{"spec":{}}}}`
	const theirs = `{"manager":"a.com/a","zero":false}`
	const other = `{"manager":"kueue.x-k8s.io/manager"}`
	cases := map[string]struct {
		reason, old, sent, want string
	}{
		"removed":              {"a manifest without it leaves it as it stands, unknown fields included", own, "", own},
		"removed, others sent": {"the others are as sent, ours is last", own, theirs, theirs + "," + own},
		"changed":              {"nobody else changes it", own, other, own},
		"unchanged":            {"nothing is to be done", own, own, ""},
		"others added after":   {"ours stays the last word", own, own + "," + theirs, theirs + "," + own},
		"not last before": {"an update of something else leaves the order alone", own + "," + theirs, own + "," + theirs,
			""},
		"none before": {"there is nothing to keep", theirs, "", ""},
		"forged":      {"nobody else makes one", theirs, theirs + "," + other, theirs},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			object := func(entries string) string {
				return `{"metadata":{"name":"a"},"spec":{"runtimePatches":[` + entries + `]}}`
			}
			rq := requestOf(t, false, object(c.old), object(c.sent))
			got, err := keepOwn(rq)
			if err != nil {
				t.Fatal(err)
			}
			text := ""
			if got != nil {
				var want []any
				if err := json.Unmarshal([]byte("["+c.want+"]"), &want); err != nil {
					t.Fatal(err)
				}
				a, _ := json.Marshal(got)
				b, _ := json.Marshal(want)
				if text = string(a); text == string(b) {
					return
				}
			}
			if text != "" || c.want != "" {
				t.Errorf("%s: got %s, want [%s]", c.reason, text, c.want)
			}
		})
	}
}
