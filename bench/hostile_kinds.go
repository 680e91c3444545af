package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/hostile"
)

// hostileWay is how hostile requests reach the managers.
type hostileWay string

const (
	quietly hostileWay = "no requests"
	dryly   hostileWay = "dry runs"
	fully   hostileWay = "large dry runs"
	really  hostileWay = "TrainJobs"
	rawly   hostileWay = "reviews"
)

// hostileKind is one kind of hostile requests.
type hostileKind struct {
	name string
	way  hostileWay
	send func(context.Context, hostile.Load) (hostile.Outcome, error)
}

// String names the kind.
func (k hostileKind) String() string { return string(k.way) + ": " + k.name }

// quietKind are no hostile requests.
var quietKind = hostileKind{name: "none", way: quietly,
	send: func(context.Context, hostile.Load) (hostile.Outcome, error) { return hostile.Outcome{}, nil }}

// kinds returns all kinds.
func (g *hostileGround) kinds() []hostileKind {
	var all []hostileKind
	for _, job := range hostile.TrainJobs(hostileNamespace, "torch") {
		all = append(all, hostileKind{job.Kind, dryly,
			func(ctx context.Context, l hostile.Load) (hostile.Outcome, error) {
				return g.dryRuns(ctx, l, job.JSON), nil
			}})
	}
	for _, t := range touchings {
		all = append(all, hostileKind{t.name, really,
			func(ctx context.Context, l hostile.Load) (hostile.Outcome, error) { return g.touch(ctx, l, t), nil }})
	}
	for _, name := range g.attack.kinds {
		all = append(all, hostileKind{name, rawly,
			func(ctx context.Context, l hostile.Load) (hostile.Outcome, error) { return g.attack.send(ctx, l, name) }})
	}
	return all
}

// fullEach is how often each kind is sent as large as the API server accepts. It takes up to a minute of CPU for one.
const fullEach = 5

// dryRuns sends the creation of TrainJobs, in turns, as dry runs.
func (g *hostileGround) dryRuns(ctx context.Context, l hostile.Load, jobs ...hostile.TrainJob) hostile.Outcome {
	url := g.host + "/apis/trainer.kubeflow.org/v1alpha1/namespaces/" + hostileNamespace + "/trainjobs?dryRun=All"
	return l.Send(ctx, func(ctx context.Context, n int) string {
		body := bytes.NewReader(jobs[n%len(jobs)].JSON)
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
		if err != nil {
			return err.Error()
		}
		request.Header.Set("Content-Type", runtime.ContentTypeJSON)
		response, err := g.sender.Do(request)
		if err != nil {
			return "no answer"
		}
		defer response.Body.Close()
		begin, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
		}
		answer := strconv.Itoa(response.StatusCode)
		if bytes.Contains(begin, []byte("failed calling webhook")) {
			answer += " of a webhook"
		}
		if err != nil {
			answer += ", cut"
		}
		return answer
	})
}

// touching are TrainJobs that a user creates and then changes again and again, so that the manager looks at them.
type touching struct {
	name string
	// job returns a TrainJob, and patch how it is changed.
	job   func(slot int) *api.TrainJob
	patch func(slot int) map[string]any
}

// slots is how many TrainJobs there are of a touching at a time.
const slots = 20

// manyJobs is a runtime of so many ReplicatedJobs.
const (
	manyJobs   = "many"
	manyJobsOf = 16
)

var touchings = []touching{
	{
		name: "owners that never existed",
		// Of each four one has the owner from the beginning, and every other is in no queue.
		job: func(slot int) *api.TrainJob {
			job := hostileJob(fmt.Sprintf("owned-%d", slot), "torch")
			if slot%2 == 0 {
				job.Labels = nil
			}
			if slot%4 < 2 {
				job.OwnerReferences = []metav1.OwnerReference{madeUp(slot)}
			}
			return job
		},
		patch: func(slot int) map[string]any {
			return map[string]any{"ownerReferences": []metav1.OwnerReference{madeUp(slot)}}
		},
	},
	{
		name: "names of many dashes",
		// Of each four two are blocked for the length of their names, and the others run as long as there is quota.
		job: func(slot int) *api.TrainJob {
			dashes, of := []int{30, 16}[slot/2%2], []string{"torch", manyJobs}[slot%2]
			job := hostileJob(strings.Repeat("a-", dashes)+strconv.Itoa(slot), of)
			job.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: "example.com/a",
				TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{}}}
			return job
		},
		patch: func(int) map[string]any { return map[string]any{} },
	},
}

func hostileJob(name, of string) *api.TrainJob {
	job := loadJob(name, hostileNamespace)
	job.Namespace, job.Spec.RuntimeRef.Name = hostileNamespace, of
	return job
}

func madeUp(slot int) metav1.OwnerReference {
	name := types.UID(fmt.Sprintf("any-%d", slot))
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: string(name), UID: name,
		Controller: ptr.To(true)}
}

// touch creates TrainJobs and changes them. One that is gone is created again.
func (g *hostileGround) touch(ctx context.Context, l hostile.Load, t touching) hostile.Outcome {
	var mu sync.Mutex
	there := map[int]bool{}
	return l.Send(ctx, func(ctx context.Context, n int) string {
		slot := n % slots
		mu.Lock()
		create := !there[slot]
		there[slot] = true
		mu.Unlock()
		if create {
			return answerOf("create", g.hostile.Create(ctx, t.job(slot)))
		}
		metadata := t.patch(slot)
		metadata["annotations"] = map[string]string{"touched": strconv.Itoa(n)}
		patch, err := json.Marshal(map[string]any{"metadata": metadata})
		if err == nil {
			err = g.hostile.Patch(ctx, t.job(slot), client.RawPatch(types.MergePatchType, patch))
		}
		if apierrors.IsNotFound(err) {
			mu.Lock()
			there[slot] = false
			mu.Unlock()
		}
		return answerOf("patch", err)
	})
}

func answerOf(verb string, err error) string {
	if err == nil {
		return verb + " accepted"
	}
	reason := string(apierrors.ReasonForError(err))
	if strings.Contains(err.Error(), "failed calling webhook") {
		reason = "failure of a webhook"
	}
	return verb + " " + reason
}

// attack is the pods without credentials that send reviews to the managers.
type attack struct {
	ground *hostileGround
	pods   []string
	kinds  []string
	urls   []string
}

// attackPods is how many pods attack, on both nodes.
const attackPods = 4

// newAttack starts the pods.
func newAttack(ctx context.Context, g *hostileGround) (*attack, error) {
	a := &attack{ground: g}
	for i := range attackPods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: attackers, Name: fmt.Sprintf("attacker-%d", i)},
			Spec: corev1.PodSpec{
				NodeName: fmt.Sprintf("node-%d", i%2+1), AutomountServiceAccountToken: ptr.To(false),
				Containers: []corev1.Container{{Name: "attacker", Image: "signalbox.test/peer:1", ImagePullPolicy: corev1.PullNever,
					Command: []string{"/peer", "attack", "--namespace", hostileNamespace, "--runtime", "torch", "--trusted",
						"system:serviceaccount:" + signalboxNamespace + ":signalbox"}}},
			},
		}
		if err := g.client.Create(ctx, pod); err != nil {
			return nil, fmt.Errorf("an attacker's pod: %w", err)
		}
		a.pods = append(a.pods, pod.Name)
		if err := g.until(ctx, pod.Name+" is ready", func() (bool, error) {
			return a.ask(ctx, pod.Name, "/kinds", nil, &a.kinds) == nil, nil
		}); err != nil {
			return nil, err
		}
	}
	slices.Sort(a.kinds)
	var err error
	a.urls, err = g.managers.urls(ctx)
	return a, err
}

// ask sends a pod a request through the API server.
func (a *attack) ask(ctx context.Context, pod, path string, query map[string]string, into any) error {
	request := a.ground.pods.CoreV1().Pods(attackers).ProxyGet("http", pod, "8080", path, query)
	data, err := request.DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", pod, err)
	}
	return json.Unmarshal(data, into)
}

// send has all pods send their share of reviews of a kind to all paths of all managers in turns.
func (a *attack) send(ctx context.Context, l hostile.Load, kind string) (all hostile.Outcome, err error) {
	var pods sync.WaitGroup
	var mu sync.Mutex
	for i, pod := range a.pods {
		pods.Go(func() {
			var one hostile.Outcome
			failed := a.ask(ctx, pod, "/attack", map[string]string{
				"kind": kind, "requests": strconv.Itoa(shareOf(l.Requests, len(a.pods))),
				"clients":  strconv.Itoa(shareOf(l.Clients, len(a.pods))),
				"interval": (l.Interval * time.Duration(len(a.pods))).String(),
				"urls":     strings.Join(slices.Concat(a.urls[i:], a.urls[:i]), " "),
			}, &one)
			mu.Lock()
			defer mu.Unlock()
			if all.Add(one); failed != nil {
				err = failed
			}
		})
	}
	pods.Wait()
	return all, err
}
