package gang

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// unplaced counts the PodGroups that can't be placed, in the metric. A PodGroup that was deleted can't be counted any
// more, whatever a reconcile has read of it before.
type unplaced struct {
	mu sync.Mutex
	// groups has all PodGroups that exist, and whether they are counted.
	groups  map[types.NamespacedName]bool
	counted int
}

// add adds a PodGroup, which isn't counted.
func (u *unplaced) add(key types.NamespacedName) {
	u.change(func() {
		if u.groups == nil {
			u.groups = map[types.NamespacedName]bool{}
		}
		u.put(key, false)
	})
}

// set sets whether a PodGroup is counted, if it exists.
func (u *unplaced) set(key types.NamespacedName, counts bool) {
	u.change(func() {
		if _, exists := u.groups[key]; exists {
			u.put(key, counts)
		}
	})
}

// remove removes a PodGroup.
func (u *unplaced) remove(key types.NamespacedName) {
	u.change(func() {
		if u.groups[key] {
			u.counted--
		}
		delete(u.groups, key)
	})
}

// clear removes all PodGroups.
func (u *unplaced) clear() {
	u.change(func() {
		clear(u.groups)
		u.counted = 0
	})
}

func (u *unplaced) put(key types.NamespacedName, counts bool) {
	if u.groups[key] {
		u.counted--
	}
	if counts {
		u.counted++
	}
	u.groups[key] = counts
}

// change changes what is counted, and sets the metric.
func (u *unplaced) change(by func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	by()
	gangsUnschedulable.Set(float64(u.counted))
}
