package e2e

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/signalbox-dev/signalbox/audit"
)

// auditor runs what `signalbox audit --watch` does beside the whole suite.
type auditor struct {
	stop    context.CancelFunc
	mu      sync.Mutex
	found   []string
	lasting audit.Lasting
}

func runAudit(scheme *runtime.Scheme) *auditor {
	ctx, cancel := context.WithCancel(context.Background())
	a := &auditor{stop: cancel}
	watcher, err := audit.NewWatcher(config(cluster.kubeconfig("")), scheme)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	a.patience(usually, 10*usually)
	go func() {
		if err := watcher.Run(ctx, 500*time.Millisecond, &a.lasting, func(f audit.Finding) { a.tell(f.String()) },
			nil); err != nil && ctx.Err() == nil {
			a.tell("the audit has ended: " + err.Error())
		}
	}()
	return a
}

// usually is how long a finding must last unless a spec says otherwise.
const usually = 5 * time.Second

// burstEnds is how long the TrainJobs of a burst may take together. JobSet works on one JobSet at a time, so that the
// last of them holds its quota without a pod for most of that time.
const burstEnds = 4 * time.Minute

// ofBurst is the patience of a spec that submits a burst, until the spec has ended.
func (a *auditor) ofBurst() {
	a.patience(usually, burstEnds)
	ginkgo.DeferCleanup(func() { a.patience(usually, 10*usually) })
}

// patience sets how long a finding must last: other than quota for nothing, and quota for nothing.
// SIGNALBOX_AUDIT_PATIENCE overrides both: test/holes expects specs to fail early.
func (a *auditor) patience(other, idle time.Duration) {
	if less, err := time.ParseDuration(os.Getenv("SIGNALBOX_AUDIT_PATIENCE")); err == nil {
		other, idle = less, less
	}
	a.lasting.SetPatience(other, idle)
}

func (a *auditor) tell(finding string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.found = append(a.found, finding)
}

// afterSpec returns the findings of a spec. For test/holes, whose specs fail before anything has lasted, it watches for
// another ten seconds.
func (a *auditor) afterSpec() []string {
	if expectsFindings() {
		time.Sleep(10 * time.Second)
	}
	return a.findings()
}

// expectsFindings reports whether a fix was removed from the manager.
func expectsFindings() bool { return os.Getenv("SIGNALBOX_AUDIT_PATIENCE") != "" }

// findings returns what was found since the last call.
func (a *auditor) findings() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := a.found
	a.found = nil
	return found
}
