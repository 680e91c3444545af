package watched

import (
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/keymutex"
)

// Remembered is for how long an answer of the API server is taken for kinds that aren't watched.
const Remembered = 10 * time.Second

// memory keeps answers of the API server for a time.
type memory struct {
	asking keymutex.KeyMutex // so that one asks, and others take its answer
	mu     sync.Mutex
	of     map[string]answer
	now    func() time.Time
}

type answer struct {
	at     time.Time
	object runtime.Object
	err    error
}

func newMemory() *memory {
	return &memory{asking: keymutex.NewHashed(0), of: map[string]answer{}, now: time.Now}
}

// mostRemembered bounds how many answers are kept, and outdated for how long: if the API server doesn't answer, old
// ones are better than none.
const (
	mostRemembered = 256
	outdated       = 10 * time.Minute
)

// into fills an object by an answer.
func (a answer) into(o runtime.Object) error {
	if a.err == nil {
		copyInto(o, a.object)
	}
	return a.err
}

// get fills an object by an answer that is not too old, or else by asking.
func (m *memory) get(key string, into runtime.Object, ask func() error) error {
	m.asking.LockKey(key)
	defer func() { _ = m.asking.UnlockKey(key) }() // it is locked
	m.mu.Lock()
	known, found := m.of[key]
	m.mu.Unlock()
	if found && m.now().Sub(known.at) < Remembered {
		return known.into(into)
	}
	err := ask()
	if found && err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return known.into(into) // the API server doesn't answer: what it has said last is shown
	}
	if err != nil && !apierrors.IsForbidden(err) && !unknown(err) {
		return err // the next one asks again
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget()
	m.of[key] = answer{m.now(), into.DeepCopyObject(), err}
	return err
}

// forget drops what is too old, and all if that is too much still.
func (m *memory) forget() {
	for key, known := range m.of {
		if m.now().Sub(known.at) >= outdated {
			delete(m.of, key)
		}
	}
	if len(m.of) >= mostRemembered {
		clear(m.of)
	}
}

// copyInto gives an object the content of another of its type.
func copyInto(to, from runtime.Object) {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from.DeepCopyObject()).Elem())
}

// unknown reports whether the cluster doesn't have a kind.
func unknown(err error) bool { return apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) }
