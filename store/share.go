package store

import (
	"hash/maphash"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Shared lets objects of a cache share equal maps. Of what a TrainJob that waits takes in memory, its maps and its
// Workload's are almost half, and in a cluster most are equal: few amounts of GPUs, few queues. An object must not be
// changed after it was given to Shared, which is a cache's rule, too. Several goroutines may use it.
type Shared struct {
	mu        sync.Mutex
	texts     known[string, string]
	resources known[corev1.ResourceName, resource.Quantity]
	flavors   known[corev1.ResourceName, kueue.ResourceFlavorReference]
}

// NewShared returns a Shared that knows no map.
func NewShared() *Shared {
	return &Shared{
		texts:     newKnown[string](lengthOf[string]),
		resources: newKnown[corev1.ResourceName](func(resource.Quantity) int { return 0 }),
		flavors:   newKnown[corev1.ResourceName](lengthOf[kueue.ResourceFlavorReference]),
	}
}

// TrainJob replaces maps of a TrainJob by equal ones.
func (s *Shared) TrainJob(job *api.TrainJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	share(&s.texts, &job.Labels)
	if trainer := job.Spec.Trainer; trainer != nil && trainer.ResourcesPerNode != nil {
		s.requirements(trainer.ResourcesPerNode)
	}
}

// Workload replaces maps of a Workload by equal ones. Its own labels name its TrainJob, so that no other has them.
func (s *Shared) Workload(wl *kueue.Workload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range wl.Spec.PodSets {
		s.template(&wl.Spec.PodSets[i].Template)
	}
	for i := range wl.Status.ResourceRequests {
		share(&s.resources, &wl.Status.ResourceRequests[i].Resources)
	}
	if wl.Status.Admission == nil {
		return
	}
	for i := range wl.Status.Admission.PodSetAssignments {
		assignment := &wl.Status.Admission.PodSetAssignments[i]
		share(&s.flavors, &assignment.Flavors)
		share(&s.resources, &assignment.ResourceUsage)
	}
}

func (s *Shared) template(t *corev1.PodTemplateSpec) {
	share(&s.texts, &t.Labels)
	share(&s.texts, &t.Annotations)
	share(&s.texts, &t.Spec.NodeSelector)
	for _, containers := range [][]corev1.Container{t.Spec.InitContainers, t.Spec.Containers} {
		for i := range containers {
			s.requirements(&containers[i].Resources)
		}
	}
}

func (s *Shared) requirements(r *corev1.ResourceRequirements) {
	share(&s.resources, &r.Requests)
	share(&s.resources, &r.Limits)
}

// Shared keeps few maps, and none that is large: whoever submits TrainJobs could otherwise fill the memory with maps of
// TrainJobs that are gone.
const (
	knownMaps    = 1024 // of a kind
	knownEntries = 8
	knownBytes   = 1024 // of text in a map
)

// known has maps by their hash. When it is full it forgets all: those that are still used will be known again.
type known[K ~string, V comparable] struct {
	seed maphash.Seed
	maps map[uint64]map[K]V
	text func(V) int // how many bytes of text a value has
}

func newKnown[K ~string, V comparable](text func(V) int) known[K, V] {
	return known[K, V]{seed: maphash.MakeSeed(), maps: map[uint64]map[K]V{}, text: text}
}

func lengthOf[S ~string](s S) int { return len(s) }

// share replaces a map by an equal one that is known, or else makes it known.
func share[M ~map[K]V, K ~string, V comparable](k *known[K, V], m *M) {
	if len(*m) == 0 || len(*m) > knownEntries {
		return
	}
	type entry struct {
		key   K
		value V
	}
	var hash uint64 // a sum, because a map has no order
	bytes := 0
	for key, value := range *m {
		hash += maphash.Comparable(k.seed, entry{key, value})
		bytes += len(key) + k.text(value)
	}
	if bytes > knownBytes {
		return
	}
	if found := k.maps[hash]; maps.Equal(found, *m) {
		*m = found
		return
	}
	if len(k.maps) == knownMaps {
		clear(k.maps)
	}
	k.maps[hash] = *m
}
