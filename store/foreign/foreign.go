// Package foreign keeps what no TrainJob owns out of the manager's caches.
//
// The API server selects no objects by their owner, and most of what a watch costs is the decoding of what it sends. So
// a line of a watch that names no TrainJob is dropped before it is decoded. Of its object only the key is kept: a read
// of that key is sent to the API server. Pods name only their JobSet; those of a dropped one are dropped, too.
package foreign

import (
	"bytes"
	"encoding/json"
	"hash/maphash"
	"iter"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// kind is what is known of one kind of objects by its watch.
type kind struct {
	path, encoding string
	// owners are further kinds whose objects are cached, in quotes.
	owners [][]byte

	mu sync.Mutex
	// cached has hashes of the UIDs of the objects that were passed to the cache.
	cached sets.Set[uint64]
	// foreign are the other objects, and those that were: the cache has them a moment later. previous are those of the
	// watch before, until this one has sent what exists.
	foreign, previous sets.Set[types.NamespacedName]
	// dropped has hashes of the UIDs of those that were dropped and not passed since; it may forget some.
	dropped sets.Set[uint64]
	// taken are those of the cache that were foreign before.
	taken sets.Set[types.NamespacedName]
	// listed is set if the watch continues a list: then the cache has all objects.
	listed bool
}

// list records that the objects are listed, because the API server doesn't send them by a watch. What is foreign is
// known still: the cache has it once it has read the list, if it can. What TrainJobs take over isn't known from now on.
func (k *kind) list() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = true
	clear(k.dropped)
}

// watch records that a watch begins, and reports whether lines of it may be dropped. initial is set if it first sends
// what exists.
func (k *kind) watch(initial bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dropped == nil {
		k.dropped, k.taken = sets.New[uint64](), sets.New[types.NamespacedName]()
	}
	if initial {
		k.listed, k.cached, k.previous = false, sets.New[uint64](), k.previous.Union(k.foreign)
		k.foreign = sets.New[types.NamespacedName]()
	}
	return !k.listed && k.cached != nil
}

// isForeign reports whether an object exists that isn't in the cache, or wasn't until a TrainJob took it over.
func (k *kind) isForeign(key types.NamespacedName) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.foreign.Has(key) || k.previous.Has(key) || k.taken.Has(key)
}

// isDropped reports whether an object was dropped that isn't a TrainJob's since.
func (k *kind) isDropped(uid string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dropped.Has(maphash.String(seed, uid))
}

// How the API server begins the lines of a watch, up to the object.
const (
	added    = `{"type":"ADDED"`
	modified = `{"type":"MODIFIED"`
	deleted  = `{"type":"DELETED"`
	bookmark = `{"type":"BOOKMARK"`
)

// drops reports whether a line is of an object that isn't to be cached. Any other line is passed, as is one that isn't
// as expected.
func (k *kind) drops(line []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	event, _, _ := bytes.Cut(line, []byte(`,"object":`))
	switch kind := string(event); {
	case kind == bookmark:
		k.previous = nil // the first is sent after all that exists
	case k.isOwned(line), k.isCached(line):
		k.pass(kind, line)
		return false
	case kind == modified:
		return true
	case kind == added, kind == deleted:
		return k.note(kind, line)
	}
	return false
}

// trainJob is in the text of each object that a TrainJob owns, as the kind of its owner. An object of others that has
// it is cached needlessly.
var trainJob = []byte(`"TrainJob"`)

// isOwned reports whether a line names an owner whose objects are cached.
func (k *kind) isOwned(line []byte) bool {
	names := func(owner []byte) bool { return bytes.Contains(line, owner) }
	return names(trainJob) || slices.ContainsFunc(k.owners, names)
}

// isCached reports whether a line names an object that was passed to the cache.
func (k *kind) isCached(line []byte) bool {
	for uid := range uids(line) {
		if k.cached.Has(uid) {
			return true
		}
	}
	return false
}

// pass records an object that is passed to the cache. One that was foreign stays so until it is deleted. Only its own
// UID counts: others may name it, as their owner's or by a label.
func (k *kind) pass(event string, line []byte) {
	is, known := metadataOf(line)
	switch {
	case !known:
	case event == deleted:
		k.cached.Delete(maphash.String(seed, is.UID))
		k.foreign.Delete(is.NamespacedName)
		k.taken.Delete(is.NamespacedName)
	default:
		k.cached.Insert(maphash.String(seed, is.UID))
		k.dropped.Delete(maphash.String(seed, is.UID))
		if k.foreign.Has(is.NamespacedName) || k.previous.Has(is.NamespacedName) {
			k.taken.Insert(is.NamespacedName)
		}
	}
}

// maxDropped is how many UIDs of dropped objects are known: those that were deleted, too, because pods end later.
const maxDropped = 1 << 16

// note records that a foreign object is there, or was deleted. It returns false if the line has no key.
func (k *kind) note(event string, line []byte) bool {
	is, known := metadataOf(line)
	switch {
	case !known:
	case event == added:
		k.foreign.Insert(is.NamespacedName)
		if k.dropped.Len() >= maxDropped {
			k.dropped = sets.New[uint64]()
		}
		k.dropped.Insert(maphash.String(seed, is.UID))
	default:
		k.foreign.Delete(is.NamespacedName)
	}
	return known
}

// metadata are what is read of an object's.
type metadata struct {
	types.NamespacedName
	UID string
}

// metadataOf returns those of a line's object, and whether it has a name. The API server sends them before what takes
// longest to parse, and after the kind alone.
func metadataOf(line []byte) (m metadata, known bool) {
	_, object, _ := bytes.Cut(line, []byte(`,"object":{`))
	kind, text, _ := bytes.Cut(object, []byte(`"metadata":`))
	if bytes.ContainsAny(kind, "{[") {
		return m, false
	}
	err := json.NewDecoder(bytes.NewReader(text)).Decode(&m)
	return m, err == nil && m.Name != ""
}

var seed = maphash.MakeSeed()

// uids returns hashes of the UIDs in a text.
func uids(text []byte) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for {
			_, rest, found := bytes.Cut(text, []byte(`"uid":"`))
			uid, after, _ := bytes.Cut(rest, []byte(`"`))
			if text = after; !found || !yield(maphash.Bytes(seed, uid)) {
				return
			}
		}
	}
}
