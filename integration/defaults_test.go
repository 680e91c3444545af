package integration_test

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/overrides"
)

func TestDefaultQueue(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
	h.create(&kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "default"}})
	const suspend = "add /spec/suspend true"
	for sent, want := range map[string]string{
		meta:                         `add /metadata/labels {"kueue.x-k8s.io/queue-name":"default"}`,
		meta + `,"labels":{"a":"b"}`: `add /metadata/labels/kueue.x-k8s.io~1queue-name "default"`,
	} {
		answer := h.ask("/mutate-trainjob", "user", "", manifest(sent, basic))
		if got := patches(t, answer); !slices.Equal(got, []string{want, suspend}) {
			t.Errorf("a TrainJob without a queue comes into the default one: got %q", got)
		}
	}
	h.fail["get LocalQueue"] = errors.New("the API server doesn't answer")
	answer := h.ask("/mutate-trainjob", "user", "", manifest(meta, basic))
	if answer.Allowed || answer.Result.Code != http.StatusInternalServerError {
		t.Errorf("what can't be looked up is refused: got %v", answer.Result)
	}
}
