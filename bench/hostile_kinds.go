package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/hostile"
)

// hostileWay is how hostile requests reach the managers.
type hostileWay string

const (
	quietly hostileWay = "no requests"
	dryly   hostileWay = "dry runs"       // a user creates TrainJobs
	fully   hostileWay = "large dry runs" // as large as the API server accepts
	really  hostileWay = "TrainJobs"      // a user creates them, and changes them again and again
	rawly   hostileWay = "reviews"        // pods without credentials send them to the port of the webhooks
)

// hostileKind is one kind of hostile requests.
type hostileKind struct {
	way      hostileWay
	name     string
	requests int
	// request sends the nth request, and returns the answer in a few words.
	request func(ctx context.Context, n int) string
}

// largeEach is how often each TrainJob is sent as large as the API server accepts, which takes seconds of its CPU time.
const largeEach = 3

// parsed is as large as what the API server answers without webhooks: of 10,000 elements that are invalid, it has no
// answer within its 34 seconds.
var parsed = hostile.Size{Bytes: hostile.Read.Bytes, Elements: 2_000}

// kinds returns all kinds. Starts without hostile requests are measured at the beginning and before the reviews.
func (g *hostileGround) kinds() []hostileKind {
	quiet := hostileKind{way: quietly, name: "none"}
	all := []hostileKind{quiet}
	of := map[hostile.Size][]hostile.TrainJob{}
	for _, size := range []hostile.Size{hostile.Small, parsed, hostile.Read, hostile.Full} {
		of[size] = size.TrainJobs(hostileNamespace, "torch")
	}
	small, read, full := trainJobs(of[hostile.Small]), trainJobs(of[parsed]), trainJobs(of[hostile.Full])
	for _, name := range slices.Sorted(maps.Keys(small)) {
		all = append(all, hostileKind{dryly, name, hostileRequests, g.dryRun(texts{small[name], read[name], 100})})
	}
	for _, s := range storedKinds {
		all = append(all, hostileKind{really, s.name, hostileRequests, func(ctx context.Context, n int) string {
			return g.change(ctx, s, n)
		}})
	}
	delete(full, fewBytes)
	large := slices.Concat(slices.Collect(maps.Values(full))...)
	all = append(all, hostileKind{fully, "each in turns", largeEach * len(large), g.dryRun(texts{usual: large})}, quiet)
	small, read, full = reviews(of[hostile.Small]), reviews(of[hostile.Read]), reviews(of[hostile.Full])
	for _, name := range slices.Sorted(maps.Keys(small)) {
		large := slices.Concat(read[name], full[name])
		all = append(all, hostileKind{rawly, name, hostileRequests, g.review(texts{small[name], large, 10})})
	}
	return all
}

// fewBytes is the kind of all that are hostile without being large, in turns.
const fewBytes = "few bytes"

// trainJobs returns hostile TrainJobs as JSON, by kind.
func trainJobs(of []hostile.TrainJob) map[string][][]byte {
	all := map[string][][]byte{}
	for _, job := range of {
		add(all, job.Kind, job.JSON)
	}
	return all
}

// reviews returns hostile reviews of TrainJobs and others as JSON, by kind.
func reviews(of []hostile.TrainJob) map[string][][]byte {
	all := map[string][][]byte{}
	trusted := "system:serviceaccount:" + signalboxNamespace + ":signalbox"
	for kind, text := range hostile.Reviews(of, trusted) {
		add(all, strings.TrimSuffix(kind, ", changed"), text)
	}
	return all
}

func add(all map[string][][]byte, kind string, text []byte) {
	if len(text) < 2000 {
		kind = fewBytes
	}
	all[kind] = append(all[kind], text)
}

// texts are the bodies of requests of one kind.
type texts struct {
	usual, seldom [][]byte
	// each is of how many requests one is of the seldom ones.
	each int
}

// of returns the nth body.
func (t texts) of(n int) []byte {
	if len(t.seldom) > 0 && n%t.each == t.each-1 {
		return t.seldom[n/t.each%len(t.seldom)]
	}
	return t.usual[n%len(t.usual)]
}

// dryRun returns what sends the creation of TrainJobs as dry runs, by the hostile user.
func (g *hostileGround) dryRun(t texts) func(context.Context, int) string {
	url := g.host + "/apis/trainer.kubeflow.org/v1alpha1/namespaces/" + hostileNamespace + "/trainjobs?dryRun=All"
	return func(ctx context.Context, n int) string { return post(ctx, g.sender, url, t.of(n)) }
}

// review returns what sends reviews to all paths of all managers, by all attackers' pods.
func (g *hostileGround) review(t texts) func(context.Context, int) string {
	return func(ctx context.Context, n int) string {
		attacker := g.attackers[n%len(g.attackers)]
		return post(ctx, attacker, g.managers.urls[n/len(g.attackers)%len(g.managers.urls)], t.of(n))
	}
}

// post sends a body, and returns the answer in a few words.
func post(ctx context.Context, by *http.Client, url string, body []byte) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := by.Do(request)
	if err != nil {
		return "no answer"
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	answer := strconv.Itoa(response.StatusCode)
	if bytes.Contains(content, []byte("failed calling webhook")) {
		answer += " of a webhook"
	}
	if err != nil {
		answer += ", cut"
	}
	return answer
}

// storedKind is a TrainJob that a user creates and then changes again and again, so that the manager looks at it.
type storedKind struct {
	name string
	// job returns one of storedJobs TrainJobs, and metadata is what a change adds to it.
	job      func(n int) *api.TrainJob
	metadata map[string]any
}

const (
	storedJobs = 20
	// manyJobs is a runtime of so many ReplicatedJobs.
	manyJobs, manyJobsOf = "many", 16
)

var neverExisted = []metav1.OwnerReference{{
	APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "any", UID: "any", Controller: ptr.To(true)}}

var storedKinds = []storedKind{
	{
		name: "owners that never existed",
		// Of each four two have the owner from the beginning, and every other is in no queue.
		job: func(n int) *api.TrainJob {
			job := hostileJob(fmt.Sprintf("owned-%d", n), "torch")
			if n%2 == 0 {
				job.Labels = nil
			}
			if n%4 < 2 {
				job.OwnerReferences = neverExisted
			}
			return job
		},
		metadata: map[string]any{"ownerReferences": neverExisted},
	},
	{
		name: "names of many dashes",
		// Of each four two are blocked for the length of their names, and the others run as long as there is quota.
		job: func(n int) *api.TrainJob {
			dashes, of := []int{30, 16}[n/2%2], []string{"torch", manyJobs}[n%2]
			return hostileJob(strings.Repeat("a-", dashes)+strconv.Itoa(n), of)
		},
		metadata: map[string]any{},
	},
}

func hostileJob(name, of string) *api.TrainJob {
	job := loadJob(name, hostileNamespace)
	job.Namespace, job.Spec.RuntimeRef.Name = hostileNamespace, of
	return job
}

// change changes a TrainJob, or creates it if it isn't there (any more).
func (g *hostileGround) change(ctx context.Context, s storedKind, n int) string {
	metadata := maps.Clone(s.metadata)
	metadata["annotations"] = map[string]string{"changed": strconv.Itoa(n)}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err.Error()
	}
	verb, job := "patch", s.job(n%storedJobs)
	err = g.hostile.Patch(ctx, job.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		verb, err = "create", g.hostile.Create(ctx, job)
	}
	switch {
	case err == nil:
		return verb + " accepted"
	case strings.Contains(err.Error(), "failed calling webhook"):
		return verb + " failed in a webhook"
	}
	return verb + " " + string(apierrors.ReasonForError(err))
}

// send sends the requests of a kind, as evenly as clients can that each wait for their answers, until all are sent or
// it has taken a minute.
func (k hostileKind) send(ctx context.Context, over time.Duration) (answers map[string]int, seconds float64) {
	var (
		clients sync.WaitGroup
		next    atomic.Int64
		mu      sync.Mutex
	)
	answers = map[string]int{}
	began := time.Now()
	for range hostileClients {
		clients.Go(func() {
			for {
				n := int(next.Add(1) - 1)
				if n >= k.requests || time.Since(began) > time.Minute || ctx.Err() != nil {
					return
				}
				time.Sleep(time.Until(began.Add(over * time.Duration(n) / time.Duration(k.requests))))
				answer := k.request(ctx, n)
				mu.Lock()
				answers[answer]++
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	return answers, time.Since(began).Seconds()
}
