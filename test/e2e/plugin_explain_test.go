package e2e

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("kubectl signalbox explain", ginkgo.Label("plugin", "kueue"), func() {
			addGangs()
			addOutages()
			for _, name := range slices.Sorted(maps.Keys(situations)) {
				s := situations[name]
				ginkgo.It("knows the cause: "+name, func(ctx context.Context) {
					g, tj := s.stage(ctx)
					for _, who := range both {
						gomega.Eventually(func() string {
							var e explain.Explanation
							g.asked(ctx, who, &e, "explain", tj.Name)
							return string(e.Cause.Code) + ": " + e.Cause.Text
						}, "90s", "1s").Should(gomega.And(gomega.HavePrefix(string(s.code)+": "), gomega.ContainSubstring(s.text)))
					}
				})
			}
		})
	}
}

// situation is one that a TrainJob may be in.
type situation struct {
	code  explain.Code
	text  string
	stage func(ctx context.Context) (*ground, *api.TrainJob)
}

// waitsOn stages a TrainJob of so many nodes that waits on a ClusterQueue of one node of a100.
func waitsOn(
	nodes int32,
	change func(context.Context, *ground),
	cq ...func(*kueue.ClusterQueue),
) func(context.Context) (*ground, *api.TrainJob) {
	return func(ctx context.Context) (*ground, *api.TrainJob) {
		ginkgo.GinkgoHelper()
		g := newGround(ctx, map[string]int64{"a100": 8}, cq...)
		g.runtime(ctx, "torch", "forever")
		if change != nil {
			change(ctx, g)
		}
		return g, g.submit(ctx, g.trainJob("job", "torch", nodes))
	}
}

// occupies starts a TrainJob of one node.
func (g *ground) occupies(ctx context.Context, name string, change ...func(*api.TrainJob)) {
	ginkgo.GinkgoHelper()
	tj := g.submit(ctx, g.trainJob(name, "torch", 1, change...))
	gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
}

func ofCohort(name string) func(*kueue.ClusterQueue) {
	return func(cq *kueue.ClusterQueue) {
		cq.Spec.CohortName = kueue.CohortReference(name)
		cq.Spec.Preemption = &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyNever}
	}
}

// patched changes an object as the admin.
func patched(ctx context.Context, o client.Object, patch string) {
	ginkgo.GinkgoHelper()
	gomega.Expect(admin.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))).To(gomega.Succeed())
}

// situations are those of the table.
var situations = map[string]situation{
	"more than the queue ever has": {
		explain.CodeTooLarge,
		"asks for 16 of nvidia.com/gpu, and its queue never has more than 8",
		waitsOn(2, nil),
	},
	"the quota is used": {explain.CodeShort, "8 of nvidia.com/gpu are missing in flavor a100", waitsOn(1,
		func(ctx context.Context, g *ground) { g.occupies(ctx, "first") })},
	"both flavors are used": {explain.CodeShort, "held by", func(ctx context.Context) (*ground, *api.TrainJob) {
		g := newGround(ctx, map[string]int64{"a100": 8, "h100": 8})
		g.runtime(ctx, "torch", "forever")
		g.occupies(ctx, "first")
		g.occupies(ctx, "second")
		return g, g.submit(ctx, g.trainJob("job", "torch", 1))
	}},
	"the cohort has borrowed its quota": {
		explain.CodeBorrowed,
		"have borrowed 8",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) { ofCohort(cq.Name)(cq) })
			g.runtime(ctx, "torch", "forever")
			g.clusterQueue(ctx, g.queue+"-guest", map[string]int64{"a100": 0}, ofCohort(g.queue))
			g.localQueue(ctx, "guest", g.queue+"-guest")
			g.occupies(ctx, "guest", func(tj *api.TrainJob) { tj.Labels[constants.QueueLabel] = "guest" })
			return g, g.submit(ctx, g.trainJob("job", "torch", 1))
		},
	},
	"its borrowing limit": {
		explain.CodeLimit,
		"borrowingLimit is reached",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
				ofCohort(cq.Name)(cq)
				cq.Spec.ResourceGroups[0].Flavors[0].Resources[0].BorrowingLimit = resource.NewQuantity(8, resource.DecimalSI)
			})
			g.runtime(ctx, "torch", "forever")
			g.clusterQueue(ctx, g.queue+"-lender", map[string]int64{"a100": 24}, ofCohort(g.queue))
			g.occupies(ctx, "first")
			g.occupies(ctx, "second")
			return g, g.submit(ctx, g.trainJob("job", "torch", 1))
		},
	},
	"the cohort lends no more": {
		explain.CodeCohort,
		"no more to lend",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g := newGround(ctx, map[string]int64{"a100": 0}, func(cq *kueue.ClusterQueue) { ofCohort(cq.Name)(cq) })
			g.runtime(ctx, "torch", "forever")
			g.clusterQueue(ctx, g.queue+"-lender", map[string]int64{"a100": 8}, ofCohort(g.queue))
			g.localQueue(ctx, "lender", g.queue+"-lender")
			g.occupies(ctx, "lender", func(tj *api.TrainJob) { tj.Labels[constants.QueueLabel] = "lender" })
			return g, g.submit(ctx, g.trainJob("job", "torch", 1))
		},
	},
	"it may not preempt": {
		explain.CodeNoPreempt,
		"preempts no Workload",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			low, high := makePriorities(ctx)
			g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
				cq.Spec.Preemption.WithinClusterQueue = kueue.PreemptionPolicyNever
			})
			g.runtime(ctx, "torch", "forever")
			g.occupies(ctx, "first", priority(low))
			return g, g.submit(ctx, g.trainJob("job", "torch", 1, priority(high)))
		},
	},
	"no rack has room": {explain.CodeTopology, "opology", func(ctx context.Context) (*ground, *api.TrainJob) {
		g := onRacks(ctx)
		g.runtime(ctx, "torch", "forever", asks(map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack"}))
		return g, g.submit(ctx, g.trainJob("job", "torch", nodesOfRack+1))
	}},
	"an admission check is pending": {
		explain.CodeCheck,
		"admission check",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g, _ := onCheck(ctx)
			return g, g.submit(ctx, g.trainJob("job", "torch", 1))
		},
	},
	"an admission check has rejected it": {
		explain.CodeRejected,
		"",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g, check := onCheck(ctx)
			tj := g.submit(ctx, g.trainJob("job", "torch", 1))
			answers(ctx, tj, check, kueue.CheckStateRejected, "no capacity")
			return g, tj
		},
	},
	"its runtime is gone": {explain.CodeBlocked, "torch", func(ctx context.Context) (*ground, *api.TrainJob) {
		g, tj := waitsOn(2, nil)(ctx)
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
		gone(ctx, g, "torch")
		return g, tj
	}},
	"its image can't be pulled": {
		explain.CodeImage,
		"example.com/train:1",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			return podSays(ctx, func(p *corev1.Pod) {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{
					{
						Name:  "node",
						Image: "example.com/train:1",
						State: corev1.ContainerState{
							Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "back-off"},
						},
					},
				}
			})
		},
	},
	"its container doesn't start": {
		explain.CodeCrash,
		"CrashLoopBackOff",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			return podSays(ctx, func(p *corev1.Pod) {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "node", State: corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off"}}}}
			})
		},
	},
	"its pods hold quota while they end": {
		explain.CodeStopping,
		"hold its quota",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			g.runtime(ctx, "torch", "forever", asks(map[string]string{stopAfter: untilEnded}))
			tj := g.submit(ctx, g.trainJob("job", "torch", 1))
			gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
			patched(ctx, workloadOf(ctx, tj), `{"spec":{"active":false}}`)
			return g, tj
		},
	},
	"nodes have no room for what was admitted": {
		explain.CodeNoNode,
		"no node",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g := newGround(ctx, map[string]int64{"a100": 800})
			g.runtime(ctx, "torch", "forever")
			return g, g.submit(ctx, g.trainJob("job", "torch", 2*nodesOfKind))
		},
	},
	"its LocalQueue doesn't exist": {explain.CodeNoQueue, "there are training", waitsInQueue("nowhere", nil)},
	"its LocalQueue is held": {
		explain.CodeQueueHeld,
		"Hold",
		waitsInQueue("held", func(ctx context.Context, g *ground) {
			g.localQueue(ctx, "held", g.queue)
			patched(ctx, &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "held"}},
				`{"spec":{"stopPolicy":"Hold"}}`)
		}),
	},
	"its LocalQueue leads nowhere": {
		explain.CodeNoCQ,
		"doesn't exist",
		waitsInQueue("lost", func(ctx context.Context, g *ground) {
			g.localQueue(ctx, "lost", "nowhere")
		}),
	},
	"its ClusterQueue is stopped": {
		explain.CodeCQStopped,
		"HoldAndDrain",
		waitsOn(1, nil, func(cq *kueue.ClusterQueue) {
			cq.Spec.StopPolicy = ptr.To(kueue.HoldAndDrain)
		}),
	},
	"its ClusterQueue has a flavor that doesn't exist": {
		explain.CodeCQInactive,
		"missing ResourceFlavor",
		waitsOn(1, nil,
			func(cq *kueue.ClusterQueue) { cq.Spec.ResourceGroups[0].Flavors[0].Name = "nowhere" }),
	},
	"its ClusterQueue doesn't admit the namespace": {explain.CodeNamespace, "selector", waitsOn(1, nil,
		func(cq *kueue.ClusterQueue) {
			cq.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "other"}}
		})},
	"its ClusterQueue has no memory": {
		explain.CodeNoResource,
		"memory",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			g.runtime(ctx, "torch", "forever")
			return g, g.submit(ctx, g.trainJob("job", "torch", 1, func(tj *api.TrainJob) {
				tj.Spec.Trainer.ResourcesPerNode.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
			}))
		},
	},
	"its node selector is no flavor's": {
		explain.CodeNoFlavor,
		"a100",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
				rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.NodeSelector = map[string]string{
					"gpu": "v100",
				}
			})
			return g, g.submit(ctx, g.trainJob("job", "torch", 1))
		},
	},
	"it is behind the head of a strict queue": {
		explain.CodeBehind,
		"considered before it",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g := newGround(ctx, map[string]int64{"a100": 16}, func(cq *kueue.ClusterQueue) {
				cq.Spec.QueueingStrategy = kueue.StrictFIFO
				cq.Spec.Preemption.WithinClusterQueue = kueue.PreemptionPolicyNever
			})
			g.runtime(ctx, "torch", "forever")
			g.occupies(ctx, "first")
			head := g.submit(ctx, g.trainJob("head", "torch", 2))
			gomega.Eventually(condition(ctx, head, kueue.WorkloadQuotaReserved)).Should(gomega.HavePrefix("False"))
			gomega.Eventually(func() int64 { return time.Now().Unix() }).Should(
				gomega.BeNumerically(">", head.CreationTimestamp.Unix()), "Kueue's queues know seconds")
			return g, g.submit(ctx, g.trainJob("job", "torch", 1))
		},
	},
	"an admin has deactivated it": {
		explain.CodeStopped,
		"deactivated",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g, tj := waitsOn(2, nil)(ctx)
			gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
			patched(ctx, workloadOf(ctx, tj), `{"spec":{"active":false}}`)
			return g, tj
		},
	},
	"its user has suspended it": {
		explain.CodeSuspended,
		"in no queue",
		func(ctx context.Context) (*ground, *api.TrainJob) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			g.runtime(ctx, "torch", "forever")
			return g, g.submit(ctx, g.trainJob("job", "torch", 1, func(tj *api.TrainJob) { tj.Labels = nil }))
		},
	},
	"it runs": {explain.CodeRunning, "on a100", waitsOn(1, nil)},
	"it is complete": {explain.CodeComplete, "", func(ctx context.Context) (*ground, *api.TrainJob) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		return g, g.submit(ctx, g.trainJob("job", "torch", 1))
	}},
}
