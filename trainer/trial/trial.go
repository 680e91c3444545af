// Package trial finds, before a TrainJob is queued, whether its namespace takes what it needs: its JobSet, what is
// created before that, and its pods. The API server knows all that matters to that (Pod Security, ServiceAccounts,
// priority classes, RuntimeClasses, LimitRanges, webhooks and policies, mounts and environment), and is asked with dry
// runs. What the namespace's ResourceQuotas allow is compared with all that a TrainJob has at a time. And it finds why
// a started TrainJob has no pods, when used-up ResourceQuotas count too.
package trial

import (
	"sync"
	"time"
	"weak"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/overrides"
)

const (
	// ReasonInvalidJobSet: the JobSet that the TrainJob needs is rejected, or what its pods mount. The message has the
	// reason and who rejects it; change the TrainJob or the runtime.
	ReasonInvalidJobSet = "InvalidJobSet"
	// ReasonTooLarge: the runtime doesn't fit into the TrainJob's annotations, where the start pins it. Remove
	// annotations, or make the runtime smaller.
	ReasonTooLarge = "TooLarge"

	// fieldManager is the bundled Trainer's.
	fieldManager = "signalbox-trainer"

	// refusedRetry is after which time a namespace is asked again that doesn't take a pod, and acceptedFor for how long
	// it isn't asked that does.
	refusedRetry = time.Minute
	acceptedFor  = 5 * time.Minute
	// newFor is for how long a TrainJob is new: what was applied with it, a ServiceAccount say, may come after it, as the
	// ServiceAccount of a new namespace does. Meanwhile, a namespace is asked again after newRetry.
	newFor   = 5 * time.Second
	newRetry = time.Second
	// unansweredRetry is after which time the API server is asked again that gave no answer.
	unansweredRetry = 5 * time.Second
	// verdicts is how many answers are remembered.
	verdicts = 4096
)

// Trial tries all that a TrainJob needs. It implements integration.Placement.
type Trial struct {
	client  client.Client
	live    client.Reader
	clock   clock.Clock
	trainer Trainer
	// verdicts are the answers, by namespace and by what TrainJobs run. Of a burst of them, one asks.
	verdicts *lru.Cache
	asking   singleflight.Group
	// replies are what namespaces take at present of started TrainJobs, by a question about it.
	replies *lru.Cache
	// busy is held while such a question is asked. There is one at a time: an API server that answers late, or a webhook
	// of one namespace, keeps one worker, and the others come back.
	busy sync.Mutex
}

// New returns a Trial of what a Trainer makes. It asks with a client, and reads ResourceQuotas without a cache.
func New(c client.Client, live client.Reader, clk clock.Clock, trainer Trainer) *Trial {
	return &Trial{
		client: c, live: live, clock: clk, trainer: trainer, verdicts: lru.New(verdicts), replies: lru.New(verdicts),
	}
}

// verdict is an answer; reason is "" where the namespace would take what a TrainJob needs. That nobody answers is an
// answer too, pending: a burst doesn't ask once for each TrainJob meanwhile.
type verdict struct {
	pending *admission.PendingError
	reason  string
	refused error
	pin     int
	at      time.Time
}

// shape is whom an answer is for.
type shape struct {
	of        weak.Pointer[overrides.Effective]
	namespace string
	own       Own
}
