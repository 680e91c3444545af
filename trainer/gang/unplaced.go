package gang

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// unplaced counts the PodGroups that can't be placed, in the metric. A PodGroup that was deleted can't be counted any
// more, whatever a reconcile has read of it before.
type unplaced struct {
	mu sync.Mutex
	// exist are all PodGroups, and counted those of them that can't be placed.
	exist, counted sets.Set[types.NamespacedName]
}

// add adds a PodGroup, which isn't counted.
func (u *unplaced) add(key types.NamespacedName) {
	u.change(func() {
		u.exist.Insert(key)
		u.counted.Delete(key)
	})
}

// set sets whether a PodGroup is counted, if it exists.
func (u *unplaced) set(key types.NamespacedName, counts bool) {
	u.change(func() {
		if counts && u.exist.Has(key) {
			u.counted.Insert(key)
		} else {
			u.counted.Delete(key)
		}
	})
}

// remove removes a PodGroup.
func (u *unplaced) remove(key types.NamespacedName) {
	u.change(func() {
		u.exist.Delete(key)
		u.counted.Delete(key)
	})
}

// clear removes all PodGroups.
func (u *unplaced) clear() {
	u.change(func() {
		u.exist.Clear()
		u.counted.Clear()
	})
}

// change changes what is counted, and sets the metric.
func (u *unplaced) change(by func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	by()
	gangsUnschedulable.Set(float64(u.counted.Len()))
}
