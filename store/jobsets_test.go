package store

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestJobSets(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "job"}}
	key := client.ObjectKeyFromObject(job)
	holding := func(uid, owner types.UID) client.Reader {
		if uid == "" {
			return newStored(t).api()
		}
		return newStored(t, setOf(uid, owner)).api()
	}
	cases := map[string]struct {
		reason                               string
		cached, live, owner, made, rem, want types.UID
	}{
		"nothing made":              {"the cache is believed", "a", "", "job", "", "", "a"},
		"none":                      {"there is none", "", "b", "job", "", "", ""},
		"another's":                 {"a JobSet of the same name is not the TrainJob's", "a", "a", "other", "", "", ""},
		"made, shown":               {"the cache is no longer late", "a", "a", "job", "a", "", "a"},
		"made, not shown":           {"it is there, whatever the cache says", "", "a", "job", "a", "a", "a"},
		"made, the last one shown":  {"the cache still shows the one before", "old", "a", "job", "a", "a", "a"},
		"made, and deleted already": {"it is gone", "", "", "job", "a", "", ""},
		"made, and replaced":        {"what is there counts", "", "b", "job", "a", "", "b"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := NewJobSets(holding(c.cached, c.owner), holding(c.live, c.owner))
			if c.made != "" {
				s.Created(key, c.made)
			}
			js, err := s.Of(context.Background(), job)
			got := types.UID("")
			if js != nil {
				got = js.UID
			}
			if err != nil || got != c.want || s.expected(key) != c.rem {
				t.Errorf("%s: got %q, %v, still expects %q", c.reason, got, err, s.expected(key))
			}
			if s.Forget(key); s.expected(key) != "" {
				t.Error("a TrainJob that is gone is forgotten")
			}
		})
	}
}
