package e2e

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/cmd/signalbox/audit"
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

// auditRights are those that docs/security.md names for `signalbox audit`.
func auditRights() []rbacv1.PolicyRule {
	lists := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"list", "watch"}}
	}
	return []rbacv1.PolicyRule{
		lists("", "nodes"), lists("", "pods"), lists("batch", "jobs"), lists("jobset.x-k8s.io", "jobsets"),
		lists("trainer.kubeflow.org", "trainjobs"), lists("kueue.x-k8s.io", "workloads", "resourceflavors"),
	}
}

// auditOnce does what `signalbox audit` does, as a user.
func auditOnce(ctx context.Context, name string) (found []string, _ error) {
	c := config(cluster.kubeconfig(""))
	c.Impersonate.UserName = name
	watcher, err := audit.NewWatcher(c, admin.Scheme())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	err = watcher.Run(ctx, 200*time.Millisecond, &audit.Lasting{Other: time.Second, Idle: time.Second},
		func(f audit.Finding) { found = append(found, f.String()) }, audit.Once())
	return found, err
}

var _ = ginkgo.Describe("signalbox audit", func() {
	ginkgo.It("finds a pod on a node of another flavor, with the rights that the documentation names", func(
		ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		pod := podsOf(ctx, tj)[0]
		auditor := g.namespace + "-auditor"
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: auditor}, Rules: auditRights()}
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: auditor},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: auditor},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: auditor}}}
		for _, o := range []client.Object{role, binding} {
			gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
			ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, o)).To(gomega.Succeed()) })
		}
		once := func() ([]string, error) { return auditOnce(ctx, auditor) }
		gomega.Eventually(once).Should(gomega.BeEmpty())

		node := get(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}})
		label := func(ctx context.Context, kind string) {
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{"gpu":%q}}}`, kind)
			gomega.Expect(admin.Patch(ctx, node.DeepCopy(), client.RawPatch(types.MergePatchType, patch))).To(
				gomega.Succeed())
		}
		label(ctx, "h100")
		ginkgo.DeferCleanup(func(ctx context.Context) { label(ctx, "a100") })
		want := "other-flavor: Pod " + g.namespace + "/" + pod.Name + ": it runs on node " + node.Name +
			`, and PodSet node was assigned other nodes: label gpu is "h100", and ResourceFlavor a100 requires "a100"`
		gomega.Expect(once()).To(gomega.Equal([]string{want}))
		// The suite's own audit finds it too; it is no finding of this spec.
		gomega.Eventually(audited.findings).Should(gomega.Equal([]string{want}))
		label(ctx, "a100")
		gomega.Expect(once()).To(gomega.BeEmpty())

		role.Rules = role.Rules[1:]
		gomega.Expect(admin.Update(ctx, role)).To(gomega.Succeed())
		gomega.Eventually(func() error {
			_, err := once()
			return err
		}).Should(gomega.MatchError(gomega.ContainSubstring("the audit needs rights to list and watch what it compares: " +
			"listing nodes: nodes is forbidden")))
	})
})
