package e2e

import (
	"context"
	"os"
	"sync"
	"time"

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
	a.patience(5 * time.Second)
	go func() {
		if err := watcher.Run(ctx, 500*time.Millisecond, &a.lasting, func(f audit.Finding) { a.tell(f.String()) },
			nil); err != nil && ctx.Err() == nil {
			a.tell("the audit has ended: " + err.Error())
		}
	}()
	return a
}

// patience sets how long a finding must last. SIGNALBOX_AUDIT_PATIENCE overrides it: test/holes expects specs to fail
// early.
func (a *auditor) patience(d time.Duration) {
	if less, err := time.ParseDuration(os.Getenv("SIGNALBOX_AUDIT_PATIENCE")); err == nil {
		a.lasting.SetPatience(less, less)
		return
	}
	a.lasting.SetPatience(d, 45*time.Second+d)
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
