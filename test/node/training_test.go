package node

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// script is what users find in examples/training.
const script = "examples/training/train.py"

// torch makes the runtime "torch" with the script of the examples, and a volume at /checkpoints. Its pods have so many
// seconds to end.
func (g *ground) torch(ctx context.Context, grace int64) {
	ginkgo.GinkgoHelper()
	content, err := os.ReadFile(script)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	gomega.Expect(admin.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "code"},
		Data: map[string]string{"train.py": string(content)}})).To(gomega.Succeed())
	g.volume(ctx, "checkpoints")
	g.runtime(ctx, "torch", trainingImage, func(spec *trainerapi.TrainingRuntimeSpec) {
		pod := trainerPod(spec)
		pod.Volumes = []corev1.Volume{{Name: "code", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "code"}}}}}
		pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "code", MountPath: "/code"}}
		pod.TerminationGracePeriodSeconds = &grace
		mount(pod, "checkpoints", "/checkpoints")
	})
}

var train = []string{"python3", "/code/train.py"}

func env(pairs ...string) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		for i := 0; i < len(pairs); i += 2 {
			tj.Spec.Trainer.Env = append(tj.Spec.Trainer.Env, corev1.EnvVar{Name: pairs[i], Value: pairs[i+1]})
		}
	}
}

var lossLine = regexp.MustCompile(`(?m)^step \d+ loss ([\d.]+)$`)

func losses(text string) []float64 {
	ginkgo.GinkgoHelper()
	var all []float64
	for _, m := range lossLine.FindAllStringSubmatch(text, -1) {
		loss, err := strconv.ParseFloat(m[1], 64)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		all = append(all, loss)
	}
	return all
}

var _ = ginkgo.Describe("Training", func() {
	ginkgo.It("PyTorch trains on two nodes, and the loss falls", ginkgo.Label("trainers"), func(ctx context.Context) {
		g := newGround(ctx, 4)
		g.torch(ctx, 20)
		tj := g.submit(ctx, "regression", "torch", 2, 2, train)
		gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
		nodes := map[string]bool{}
		for i := range 2 {
			p := rank(ctx, tj, i)
			gomega.Expect(p.Status.ContainerStatuses[0].State.Terminated.ExitCode).To(gomega.BeZero())
			gomega.Expect(p.Spec.NodeSelector).To(gomega.HaveKeyWithValue("gpu", flavor))
			gomega.Expect(logs(p)()).To(gomega.And(
				gomega.MatchRegexp(`rank %d of 2, GPUs GPU-\d,GPU-\d\n`, i), gomega.ContainSubstring("rank %d done", i)))
			nodes[p.Spec.NodeName] = true
		}
		gomega.Expect(nodes).NotTo(gomega.BeEmpty())
		seen := losses(logs(rank(ctx, tj, 0))())
		gomega.Expect(len(seen)).To(gomega.BeNumerically(">=", 10))
		gomega.Expect(seen[len(seen)-1]).To(gomega.BeNumerically("<", seen[0]/10), "%v", seen)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	})

	ginkgo.It("a preempted training saves, holds its quota until it has ended, and continues where it was",
		ginkgo.Label("trainers"), func(ctx context.Context) {
			g := newGround(ctx, 4)
			g.torch(ctx, 20)
			g.runtime(ctx, "urgent", peerImage)
			tj := g.submit(ctx, "long", "torch", 2, 2, train, priority("low"),
				env("CHECKPOINT", "/checkpoints/long.pt", "STEPS", "100", "EVERY", "5", "PAUSE", "0.1"))
			gomega.Eventually(running(ctx, tj)).Should(gomega.Equal(2))
			first := rank(ctx, tj, 0)
			gomega.Eventually(logs(first)).Should(gomega.ContainSubstring("step 10 loss"))
			urgent := g.submit(ctx, "urgent", "urgent", 1, 4, peer("--steps", "3"), priority("high"))
			var saved string
			gomega.Eventually(func() string {
				if m := regexp.MustCompile(`saved step (\d+)`).FindStringSubmatch(logs(first)()); m != nil {
					saved = m[1]
				}
				if len(of(ctx, urgent, "")) > 0 { // quota is counted for one of the two at a time
					for _, p := range of(ctx, tj, "") {
						gomega.Expect(ended(p)).To(gomega.BeTrue(), "%s holds its GPUs while the next has its quota", p.Name)
					}
				}
				return saved
			}, "60s", "50ms").ShouldNot(gomega.BeEmpty())
			gomega.Eventually(is(ctx, urgent, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
			gomega.Eventually(running(ctx, tj)).Should(gomega.Equal(2))
			again := rank(ctx, tj, 0)
			gomega.Expect(again.UID).NotTo(gomega.Equal(first.UID))
			gomega.Eventually(logs(again)).Should(gomega.ContainSubstring("continues after step " + saved))
			gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
			gomega.Expect(logs(again)()).NotTo(gomega.ContainSubstring("step 1 loss"))
		})

	if !bundled() {
		return
	}

	ginkgo.It("a preempted training that doesn't listen repeats little: it is stopped after its next checkpoint",
		func(ctx context.Context) {
			g := newGround(ctx, 4)
			const grace = 3
			g.torch(ctx, grace)
			g.runtime(ctx, "urgent", peerImage)
			const every, pause = 30, 100 * time.Millisecond
			tj := g.submit(ctx, "deaf", "torch", 2, 2, train, priority("low"), env("CHECKPOINT", "/checkpoints/deaf.pt",
				"STEPS", "240", "EVERY", "1", "PAUSE", "0.1", "SAVE", strconv.Itoa(every)), func(tj *api.TrainJob) {
				tj.Annotations = map[string]string{api.CheckpointMetricAnnotation: "saved"}
			})
			saved := saves(ctx, tj)
			gomega.Eventually(saved).Should(gomega.BeNumerically(">", 0))
			before, first := saved(), rank(ctx, tj, 0)
			gomega.Eventually(logs(first)).Should(gomega.ContainSubstring(fmt.Sprintf("step %d loss", before+every/2)))
			urgent := g.submit(ctx, "urgent", "urgent", 1, 4, peer("--steps", "3"), priority("high"))
			gomega.Eventually(func() bool { return ptr.Deref(get(ctx, tj).Spec.Suspend, false) }).Should(gomega.BeTrue())
			gomega.Eventually(saved).Should(gomega.BeNumerically(">", before), "it is stopped when it has saved once more")
			atStop := saved()
			done := 0
			gomega.Eventually(func() (bool, error) {
				if m := lossLine.FindAllString(logs(first)(), -1); len(m) > done {
					done = len(m) // a line for each step
				}
				return is(ctx, urgent, trainerapi.TrainJobComplete)()
			}, "60s", "50ms").Should(gomega.BeTrue())
			gomega.Eventually(running(ctx, tj)).Should(gomega.Equal(2))
			from := continues(ctx, tj, 2)
			gomega.Expect(from).To(gomega.BeNumerically(">=", atStop))
			ginkgo.AddReportEntry(fmt.Sprintf("checkpoint: step %d was saved at the stop, step %d was the last, "+
				"and it continued after step %d", atStop, done, from))
			most := int(time.Duration(grace+5) * time.Second / pause) // from the report to the end of the grace period
			gomega.Expect(done-from).To(gomega.BeNumerically("<=", most), "steps are repeated")
			gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
		})

	ginkgo.It("a training that was admitted with fewer nodes gets the others when there is room, and gives them back",
		func(ctx context.Context) {
			g := newGround(ctx, 6)
			g.torch(ctx, 3)
			g.runtime(ctx, "peer", peerImage)
			other := g.submit(ctx, "other", "peer", 1, 2, peer("--steps", "1000"), priority("high"))
			gomega.Eventually(running(ctx, other)).Should(gomega.Equal(1))
			tj := g.submit(ctx, "grows", "torch", 3, 2, train, priority("low"), env("CHECKPOINT", "/checkpoints/grows.pt",
				"STEPS", "10000", "EVERY", "1", "PAUSE", "0.1", "SAVE", "10"), func(tj *api.TrainJob) {
				tj.Annotations = map[string]string{api.CheckpointMetricAnnotation: "saved", api.GrowAnnotation: "true",
					overrides.MinParallelismAnnotation: "2"}
			})
			// It returns after which step the training continues with so many processes.
			runs := func(world int, nodes string) (from int) {
				ginkgo.GinkgoHelper()
				from = continues(ctx, tj, world)
				gomega.Eventually(running(ctx, tj)).Should(gomega.Equal(world))
				gomega.Eventually(func() string { return get(ctx, tj).Status.Nodes }).Should(gomega.Equal(nodes))
				gomega.Eventually(saves(ctx, tj)).Should(gomega.BeNumerically(">", from))
				return from
			}
			gomega.Eventually(running(ctx, tj)).Should(gomega.Equal(2))
			gomega.Eventually(func() string { return get(ctx, tj).Status.Nodes }).Should(gomega.Equal("2 of 3"))
			// It grows when it has saved. Room is looked for at its first checkpoint, and not again for a minute.
			gomega.Expect(user.Delete(ctx, other)).To(gomega.Succeed())
			grown := runs(3, "")
			gomega.Expect(grown).To(gomega.BeNumerically(">=", 10), "it is stopped when it has saved")
			gomega.Expect(eventsOf(ctx, tj)()).To(gomega.ContainElement(
				"Grows: It is started again with 3 of 3 pods of node"))
			gomega.Expect(g.used(ctx)()).To(gomega.BeEquivalentTo(6))

			urgent := g.submit(ctx, "urgent", "peer", 1, 2, peer("--steps", "1000"), priority("high"))
			shrunk := runs(2, "2 of 3")
			gomega.Expect(shrunk).To(gomega.BeNumerically(">", grown))
			ginkgo.AddReportEntry(fmt.Sprintf("growth: 3 processes continued after step %d, 2 after step %d", grown, shrunk))
			gomega.Eventually(running(ctx, urgent)).Should(gomega.Equal(1))
			gomega.Expect(g.used(ctx)()).To(gomega.BeEquivalentTo(6))
			var workloads kueue.WorkloadList
			gomega.Expect(admin.List(ctx, &workloads, client.InNamespace(g.namespace))).To(gomega.Succeed())
			gomega.Expect(workloads.Items).To(gomega.ConsistOf(gomega.HaveField("Spec.PodSets", gomega.ConsistOf(gomega.And(
				gomega.HaveField("Count", gomega.BeEquivalentTo(3)),
				gomega.HaveField("MinCount", gomega.HaveValue(gomega.BeEquivalentTo(2)))))),
				gomega.HaveField("Spec.PodSets", gomega.ConsistOf(gomega.HaveField("MinCount", gomega.BeNil())))),
				"its own has the minimum again, and the other is that of the urgent one")
		})

	ginkgo.It("MPI's launcher reaches every worker by SSH", func(ctx context.Context) {
		g := newGround(ctx, 4)
		g.runtime(ctx, "mpi", trainingImage, mpi)
		tj := g.submit(ctx, "ring", "mpi", 2, 2, []string{"bash", "-c", `
			for host in ring-launcher-0-0.ring ring-node-0-0.ring; do # mpirun leaves out whom DNS doesn't know yet
				until getent hosts $host; do sleep 0.2; done
			done
			mpirun python3 -c "import os; print('hello from', os.environ['OMPI_COMM_WORLD_RANK'], os.uname().nodename)"`})
		gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
		launchers := of(ctx, tj, "launcher")
		gomega.Expect(launchers).To(gomega.HaveLen(1))
		text := logs(launchers[0])()
		for _, host := range []string{"ring-node-0-0", "ring-launcher-0-0"} {
			gomega.Expect(text).To(gomega.MatchRegexp(`hello from \d ` + host))
		}
	})

	ginkgo.It("a dataset is fetched once, also for a TrainJob that is preempted", func(ctx context.Context) {
		g := newGround(ctx, 4)
		g.volume(ctx, "initializer") // the name by which Trainer knows the volume of an initializer
		g.runtime(ctx, "peer", peerImage, func(spec *trainerapi.TrainingRuntimeSpec) {
			fetch := step("dataset-initializer", "dataset-initializer", peerImage, peer("fetch", "/workspace/dataset")...)
			mount(&fetch.Template.Spec.Template.Spec, "initializer", "/workspace")
			mount(trainerPod(spec), "initializer", "/workspace")
			jobs := &spec.Template.Spec.ReplicatedJobs
			(*jobs)[0].DependsOn = []jobset.DependsOn{{Name: fetch.Name, Status: jobset.DependencyComplete}}
			*jobs = append([]jobset.ReplicatedJob{fetch}, *jobs...)
		})
		g.runtime(ctx, "urgent", peerImage)
		tj := g.submit(ctx, "reads", "peer", 1, 4, peer("--dataset", "/workspace/dataset", "--steps", "40"), priority("low"))
		gomega.Eventually(func() int { return len(of(ctx, tj, "node")) }).Should(gomega.Equal(1))
		gomega.Eventually(logs(rank(ctx, tj, 0))).Should(gomega.ContainSubstring("fetched 1 times"))
		urgent := g.submit(ctx, "urgent", "urgent", 1, 4, peer("--steps", "3"), priority("high"))
		gomega.Eventually(is(ctx, urgent, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
		gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
		gomega.Expect(logs(rank(ctx, tj, 0))()).To(gomega.ContainSubstring("fetched 1 times"))
	})

	ginkgo.It("a training process reports its progress with its own token, by the Service", func(ctx context.Context) {
		g := newGround(ctx, 4)
		g.runtime(ctx, "peer", peerImage)
		tj := g.submit(ctx, "reports", "peer", 2, 1, peer("--report", "--steps", "4"))
		gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
		gomega.Expect(strings.Count(logs(rank(ctx, tj, 0))(), "reported ")).To(gomega.Equal(4))
		gomega.Expect(get(ctx, tj).Status.TrainerStatus.ProgressPercentage).To(gomega.HaveValue(gomega.BeEquivalentTo(100)))
	})

	ginkgo.It("a gang starts when there is room for all of it", func(ctx context.Context) {
		g := newGround(ctx, 100) // so that nodes, and not quota, are what is short
		g.runtime(ctx, "peer", peerImage)
		blocker := g.submit(ctx, "blocker", "peer", 2, 2, peer("--steps", "600"))
		gomega.Eventually(running(ctx, blocker)).Should(gomega.Equal(2))
		tj := g.submit(ctx, "gang", "peer", 4, 2, peer("--steps", "3"), func(tj *api.TrainJob) {
			tj.Annotations = map[string]string{"signalbox.dev/gang-scheduling": "required"}
		})
		gomega.Eventually(func() int { return len(of(ctx, tj, "")) }).Should(gomega.Equal(4))
		gomega.Consistently(func() int { return placed(of(ctx, tj, "")) }, 5*time.Second).Should(gomega.BeZero(),
			"there is room for two of four pods")
		gomega.Expect(admin.Delete(ctx, blocker)).To(gomega.Succeed())
		gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
	})
})

// saves is the last checkpoint that a TrainJob has reported; 0 for none.
func saves(ctx context.Context, tj *api.TrainJob) func() int {
	return func() int {
		ginkgo.GinkgoHelper()
		c := get(ctx, tj).Status.Checkpoint
		if c == nil {
			return 0
		}
		step, err := strconv.Atoi(c.Value)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		return step
	}
}

// continues waits until a training runs with so many processes, and returns after which step it continues; 0 if it
// begins.
func continues(ctx context.Context, tj *api.TrainJob, world int) int {
	ginkgo.GinkgoHelper()
	first := regexp.MustCompile(fmt.Sprintf(`^rank 0 of %d,.*\n(?:continues after step (\d+)\n)?step `, world))
	var found []string
	gomega.Eventually(func() []string {
		for _, p := range of(ctx, tj, "node") {
			if p.Annotations[batchv1.JobCompletionIndexAnnotation] == "0" && p.DeletionTimestamp.IsZero() {
				found = first.FindStringSubmatch(logs(p)())
			}
		}
		return found
	}, "2m").ShouldNot(gomega.BeEmpty())
	if found[1] == "" {
		return 0
	}
	step, err := strconv.Atoi(found[1])
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return step
}

// placed is how many pods have a node.
func placed(all []corev1.Pod) int {
	n := 0
	for _, p := range all {
		if p.Spec.NodeName != "" {
			n++
		}
	}
	return n
}

// ended reports whether no container of a pod runs.
func ended(p corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// mpi makes a runtime as Trainer's for DeepSpeed is: workers with an SSH server, and a launcher that is a node as well.
func mpi(spec *trainerapi.TrainingRuntimeSpec) {
	spec.MLPolicy.MLPolicySource = trainerapi.MLPolicySource{MPI: &trainerapi.MPIMLPolicySource{
		NumProcPerNode: ptr.To[int32](1), MPIImplementation: ptr.To(trainerapi.MPIImplementationOpenMPI),
		SSHAuthMountPath: ptr.To("/home/mpiuser/.ssh"), RunLauncherAsNode: ptr.To(true),
	}}
	worker := step("node", "", trainingImage, "/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config")
	launcher := step("launcher", "trainer", trainingImage)
	launcher.Template.Spec.Template.Spec.Containers[0].Name = "node"
	launcher.DependsOn = []jobset.DependsOn{{Name: "node", Status: jobset.DependencyReady}}
	for _, job := range []*jobset.ReplicatedJob{&worker, &launcher} {
		pod := &job.Template.Spec.Template.Spec
		pod.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To[int64](1000)}
		pod.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To[int64](1000)}
	}
	spec.Template.Spec.Network = &jobset.Network{PublishNotReadyAddresses: ptr.To(true)}
	spec.Template.Spec.SuccessPolicy = &jobset.SuccessPolicy{
		Operator: jobset.OperatorAll, TargetReplicatedJobs: []string{"launcher"}}
	spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{worker, launcher}
}
