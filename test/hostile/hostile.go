// Package hostile makes requests that cost much more than their bytes to whoever doesn't bound that.
package hostile

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Size is how large what is large about a TrainJob is.
type Size struct {
	// Bytes is its size as JSON, and Elements the most elements of a list.
	Bytes, Elements int
}

var (
	// Full is as large as the API server accepts: three MiB.
	Full = Size{Bytes: 2_700_000, Elements: math.MaxInt}
	// Read is as large as Signalbox decodes by its default limits.
	Read = Size{Bytes: 700_000, Elements: 10_000}
	// Small costs the API server itself little, without any webhook.
	Small = Size{Bytes: 12_000, Elements: 1_000}
)

// TrainJob is a TrainJob that a user sends.
type TrainJob struct {
	// Kind says what is hostile about it.
	Kind string
	// JSON is the object.
	JSON []byte
}

// TrainJobs returns one TrainJob of each kind, of a runtime of a namespace, as large as the API server accepts.
func TrainJobs(namespace, runtime string) []TrainJob { return Full.TrainJobs(namespace, runtime) }

// TrainJobs returns one TrainJob of each kind, of a runtime of a namespace.
func (s Size) TrainJobs(namespace, runtime string) []TrainJob {
	podTemplate := func(text string) string { // of an entry of runtimePatches
		return `"runtimePatches":[{"manager":"example.com/a","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[` +
			`{"name":"node","template":{"spec":{"template":{` + text + `}}}}]}}}}]`
	}
	podSpec := func(text string) string { return podTemplate(`"spec":{` + text + `}`) }
	many := func(element string) string { return list(element, min(s.Bytes/(len(element)+1), s.Elements)) }
	kinds := map[string]struct{ metadata, spec string }{
		"elements":  {"", podSpec(`"volumes":` + many(`{}`))},
		"strings":   {"", `"trainer":{"args":` + many(`""`) + `}`},
		"members":   {"", podTemplate(`"metadata":{"labels":` + Members(s.Bytes/12) + `}`)},
		"entries":   {"", `"runtimePatches":` + many(`{"manager":""}`)},
		"labels":    {`"labels":` + Members(s.Bytes/27), ""},
		"owners":    {`"ownerReferences":` + list(ownerOf(false), min(s.Bytes/135, s.Elements)), ""},
		"owner":     {`"ownerReferences":[` + ownerOf(true) + `]`, ""},
		"a pin":     {`"annotations":{"signalbox.dev/runtime":"` + bomb(s.Bytes*unfolds) + `"}`, ""},
		"dashes":    {`"name":"` + strings.Repeat("a-", 31) + `a"`, podSpec(`"volumes":[]`)},
		"text":      {`"annotations":{"a":"` + strings.Repeat("x", s.Bytes) + `"}`, ""},
		"quantity":  {"", `"trainer":{"resourcesPerNode":{"requests":{"cpu":"1e9999999","memory":"1e-9999999"}}}`},
		"pods":      {"", `"trainer":{"numNodes":2147483647}`},
		"deadline":  {"", `"activeDeadlineSeconds":9223372036854775807`},
		"affinity":  {"", podSpec(`"topologySpreadConstraints":` + many(`{"matchLabelKeys":["a"]}`))},
		"variables": {"", `"trainer":{"env":` + many(`{"name":"A"}`) + `}`},
	}
	var all []TrainJob
	for kind, k := range kinds {
		metadata := k.metadata
		if !strings.HasPrefix(metadata, `"name"`) {
			metadata = strings.TrimSuffix(`"generateName":"hostile-",`+metadata, ",")
		}
		spec := strings.TrimSuffix(`"suspend":true,"runtimeRef":{"kind":"TrainingRuntime","name":"`+runtime+`"},`+k.spec, ",")
		text := fmt.Sprintf(`{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":%q,%s},`+
			`"spec":{%s}}`, namespace, metadata, spec)
		all = append(all, TrainJob{kind, []byte(text)})
	}
	slices.SortFunc(all, func(a, b TrainJob) int { return strings.Compare(a.Kind, b.Kind) })
	return all
}

// ownerOf returns an owner that never existed.
func ownerOf(controller bool) string {
	return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"any","uid":"any","controller":%t}`, controller)
}

// list returns a JSON list of n equal elements.
func list(element string, n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
}

// Members returns a JSON object of n members.
func Members(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `,"k%d":""`, i)
	}
	return "{" + strings.TrimPrefix(text.String(), ",") + "}"
}

// unfolds is how many times as large as its text a pin unfolds to.
const unfolds = 770

// bomb returns the value of a pin that unfolds to so many bytes.
func bomb(bytesOf int) string {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	page := []byte(strings.Repeat(" ", 1<<20))
	for range bytesOf >> 20 {
		if _, err := w.Write(page); err != nil {
			panic(err) // a buffer takes everything
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(packed.Bytes())
}

// Reviews returns what any client sends to the webhooks beside the API server, by kind: the TrainJobs, as if users whom
// the webhooks trust created or changed them, and what is no review.
func Reviews(of []TrainJob, trusted string) map[string][]byte {
	reviews := map[string][]byte{
		"nesting":   []byte(strings.Repeat(`{"request":`, 100_000)),
		"groups":    review("CREATE", []byte(`{}`), nil, `{"groups":`+list(`"a"`, 600_000)+`}`),
		"no end":    []byte(`{"request":{"object":{"spec":"` + strings.Repeat("x", Full.Bytes)),
		"no object": review("UPDATE", []byte(`7`), []byte(`[]`), `{}`),
	}
	user, err := json.Marshal(map[string]string{"username": trusted})
	if err != nil {
		panic(err) // it is a string
	}
	for _, job := range of {
		reviews[job.Kind] = review("CREATE", job.JSON, nil, string(user))
		if len(job.JSON) < Full.Bytes/2 {
			reviews[job.Kind+", changed"] = review("UPDATE", job.JSON, job.JSON, string(user))
		}
	}
	return reviews
}

func review(operation string, object, old []byte, user string) []byte {
	if old == nil {
		old = []byte("null")
	}
	return fmt.Appendf(nil, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","kind":`+
		`{"group":"trainer.kubeflow.org","version":"v1alpha1","kind":"TrainJob"},"resource":{"group":"trainer.kubeflow.org",`+
		`"version":"v1alpha1","resource":"trainjobs"},"operation":%q,"userInfo":%s,"object":%s,"oldObject":%s}}`,
		operation, user, object, old)
}
