package avoid

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestHalf holds, for clusters of any shape, that at least half of the nodes that fit a step on a flavor are left, and
// those that it needs, beside other steps too. Nothing is kept off that isn't remembered, and what is tolerated had to
// be.
func TestHalf(t *testing.T) {
	random := rand.New(rand.NewPCG(44, 1))
	for round := range 2000 {
		var cluster Cluster
		var counted []api.AvoidedNode
		pools := 1 + random.IntN(4)
		for i := range random.IntN(12) {
			node := nodeOf(fmt.Sprintf("n%d", i), fmt.Sprint(random.IntN(pools)), int64(random.IntN(3)*4))
			if cluster.Nodes = append(cluster.Nodes, node); random.IntN(2) == 0 {
				counted = append(counted, remembered(node.Name, Lost, 0))
			}
		}
		for pool := range random.IntN(pools + 1) {
			cluster.Flavors = append(cluster.Flavors,
				kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"pool": fmt.Sprint(pool)}})
		}
		steps := make([]corev1.PodSpec, 1+random.IntN(3))
		for i := range steps {
			if steps[i] = gpu(int64(random.IntN(9))); random.IntN(3) == 0 {
				steps[i].NodeSelector = map[string]string{"pool": fmt.Sprint(random.IntN(pools))}
			}
		}
		runs := jobsOf(steps...)
		for i := range runs.ReplicatedJobs {
			runs.ReplicatedJobs[i].Template.Spec.Parallelism = ptr.To(1 + random.Int32N(6))
		}
		choice := cluster.Choose(runs, counted, nil)
		off := sets.New(choice.Hosts...)
		if off.Len() != len(choice.Avoided) || len(choice.Avoided)+len(choice.Tolerated) != len(counted) {
			t.Fatalf("round %d: %d hosts of %d nodes, %d tolerated", round, off.Len(), len(choice.Avoided),
				len(choice.Tolerated))
		}
		full, fitting := sets.New[string](), cluster.fitting(runs)
		for _, g := range cluster.beside(runs, fitting) {
			if !cluster.holds(g, off) {
				t.Fatalf("round %d: steps that run at a time have no room beside each other", round)
			}
			for _, n := range choice.Tolerated {
				if host, _ := cluster.hostOf(n); !cluster.holds(g, off.Clone().Insert(host)) {
					full.Insert(host)
				}
			}
		}
		for _, fits := range fitting {
			taken, of := fits.of(off), fits.of(nil)
			if 2*taken.nodes > of.nodes || of.pods >= fits.pods && of.pods-taken.pods < fits.pods {
				t.Fatalf("round %d: %+v of %+v that fit %d pods are kept off", round, taken, of, fits.pods)
			}
			for host := range fits.hosts {
				if fits.needs(host, off.Clone().Insert(host)) {
					full.Insert(host)
				}
			}
		}
		for _, n := range choice.Tolerated {
			if host, _ := cluster.hostOf(n); !full.Has(host) {
				t.Fatalf("round %d: %s could be kept off", round, n.Name)
			}
		}
	}
}

// TestTogether holds which ReplicatedJobs may run at a time.
func TestTogether(t *testing.T) {
	after := func(name string, status jobset.DependsOnStatus, on ...string) jobset.ReplicatedJob {
		rj := jobset.ReplicatedJob{Name: name}
		for _, o := range on {
			rj.DependsOn = append(rj.DependsOn, jobset.DependsOn{Name: o, Status: status})
		}
		return rj
	}
	for name, c := range map[string]struct {
		jobs []jobset.ReplicatedJob
		want string
	}{
		"one":           {[]jobset.ReplicatedJob{after("a", "")}, "[]"},
		"two":           {[]jobset.ReplicatedJob{after("a", ""), after("b", jobset.DependencyReady, "a")}, "[[0 1]]"},
		"one after one": {[]jobset.ReplicatedJob{after("a", ""), after("b", jobset.DependencyComplete, "a")}, "[]"},
		"a server runs on": {[]jobset.ReplicatedJob{after("data", ""), after("server", ""),
			after("node", jobset.DependencyComplete, "data")}, "[[0 1] [1 2]]"},
		"after one that is ready": {[]jobset.ReplicatedJob{after("a", ""), after("b", jobset.DependencyReady, "a"),
			after("c", jobset.DependencyComplete, "b"), after("d", jobset.DependencyReady, "gone")}, "[[0 1 3] [0 2 3]]"},
	} {
		if got := fmt.Sprint(together(c.jobs)); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}
