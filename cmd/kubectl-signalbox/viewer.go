package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/watched"
)

// watchedKinds are what the page shows, but for events and logs.
func watchedKinds() []client.Object {
	return []client.Object{
		&api.TrainJob{}, &kueue.Workload{}, &kueue.ClusterQueue{}, &kueue.LocalQueue{}, &kueue.Cohort{},
		&kueue.ResourceFlavor{}, &kueue.Topology{}, &kueue.AdmissionCheck{}, &kueue.WorkloadPriorityClass{},
		&kueue.MultiKueueCluster{}, &corev1.Namespace{}, &corev1.Node{}, &corev1.Pod{}, &corev1.LimitRange{},
		&nodev1.RuntimeClass{}, &jobset.JobSet{}, &usageapi.QuotaUsage{},
	}
}

// viewer shows the page to one user.
type viewer struct {
	// base is the user's session. Each request works with a copy.
	base session
	look
	source
	counts
	health  health
	planner planner
	past

	mu     sync.Mutex
	known  *known
	asking sync.Mutex
}

// counts are of changes.
type counts struct {
	changes watched.Changes // of what is shown
	objects watched.Changes // of what is read
}

// past is what the page has seen, and done.
type past struct {
	history history
	deeds   deeds
}

// source is what is read, and whether it has been.
type source struct {
	// live asks the API server each time.
	live   client.WithWatch
	synced func(context.Context) bool
	may    func(context.Context, authorizationv1.ResourceAttributes) (bool, error)
	narrow bool
}

// look is how the page looks at the cluster.
type look struct {
	cluster string
	// acts is set if the page may change TrainJobs.
	acts bool
}

// newViewer watches a cluster for a user until the context ends.
func newViewer(ctx context.Context, s *session, config *rest.Config, l look) (*viewer, error) {
	v := &viewer{base: *s, look: l}
	v.base.streams = genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.Discard}
	v.base.open = opensOnce(s.open, v.base.streams)
	watches, err := watched.Open(ctx, config, s.client, watched.Options{
		Kinds: watchedKinds(), Namespace: s.namespace, Failed: func(err error) {
			if v.health.failed(err) {
				v.changes.Add()
			}
		},
		Changed: func(old, now any) {
			v.history.add(old, now, time.Now())
			v.objects.Add()
			v.changes.Add()
		},
	})
	if err != nil {
		return nil, err
	}
	v.base.client = watches
	v.source = source{live: s.client, synced: watches.Synced, may: watches.May, narrow: watches.Narrow()}
	v.planner.within = ctx
	return v, nil
}

// opensOnce returns how sessions with other clusters are opened: once, and they ask at most once in watched.Remembered.
// Their simulations run with the feature gates of the viewer's own cluster, which are the process's.
func opensOnce(
	open func(string) (*session, error), streams genericiooptions.IOStreams,
) func(string) (*session, error) {
	var mu sync.Mutex
	known := map[string]*session{}
	return func(context string) (*session, error) {
		mu.Lock()
		defer mu.Unlock()
		if known[context] == nil {
			s, err := open(context)
			if err != nil {
				return nil, err
			}
			s.client, s.gated, s.streams = watched.Remembering(s.client), true, streams
			known[context] = s
		}
		of := *known[context] // each request notes the rights that are missing by itself
		return &of, nil
	}
}

// Changes implements serve.Viewer.
func (v *viewer) Changes() *watched.Changes { return &v.changes }

// Narrow implements serve.Viewer.
func (v *viewer) Narrow() bool { return v.narrow }

// Alive implements serve.Viewer.
func (v *viewer) Alive(ctx context.Context) error {
	if !v.health.due(time.Now()) {
		return v.health.expired()
	}
	within, cancel := context.WithTimeout(ctx, askLost)
	defer cancel()
	err := v.live.Create(within, &authenticationv1.SelfSubjectReview{})
	if ctx.Err() == nil && v.health.heard(err, time.Now()) {
		v.changes.Add()
	}
	return v.health.expired()
}

// session returns a session for one request, in a namespace.
func (v *viewer) session(namespace string) *session {
	s := v.base
	s.missing = nil
	if namespace != "" {
		s.namespace = namespace
	}
	return &s
}

// slowest is how long the first answer waits for what is watched.
const slowest = 30 * time.Second

// read returns what the queues show now. It is read once for all who look at it.
func (v *viewer) read(ctx context.Context) (*known, error) {
	synced, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	if !v.synced(synced) {
		return nil, errors.New("the cluster is still being read; the API server answers slowly, or not at all")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	count, _ := v.objects.Since()
	if v.known != nil && v.known.count == count {
		return v.known, nil
	}
	s := v.session("")
	q, err := s.queues(ctx, s.namespace)
	if err != nil {
		return nil, err
	}
	if err := v.base.useGates(ctx, q.Config); err != nil { // once, before any simulation
		return nil, err
	}
	var jobs api.TrainJobList
	if _, err := s.listWide(ctx, &jobs, "trainjobs.trainer.kubeflow.org", s.namespace); err != nil {
		return nil, err
	}
	v.known = &known{queues: q, jobs: jobs.Items, missing: s.missing, count: count,
		byUID: utilslices.ToRefMap(jobs.Items, func(job *api.TrainJob) types.UID { return job.UID })}
	return v.known, nil
}
