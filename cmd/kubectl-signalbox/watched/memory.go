package watched

import (
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// Remembered is for how long an answer of the API server is taken for kinds that aren't watched.
const Remembered = 10 * time.Second

// memory keeps answers of the API server for a time.
type memory struct {
	mu  sync.Mutex
	of  map[string]answer
	now func() time.Time
}

type answer struct {
	at     time.Time
	object runtime.Object
	err    error
}

// mostRemembered bounds how many answers are kept.
const mostRemembered = 256

// get fills an object by an answer that is not too old, or else by asking.
func (m *memory) get(key string, into runtime.Object, ask func() error) error {
	m.mu.Lock()
	known, found := m.of[key]
	m.mu.Unlock()
	if found && m.now().Sub(known.at) < Remembered {
		if known.err == nil {
			copyInto(into, known.object)
		}
		return known.err
	}
	err := ask()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget()
	m.of[key] = answer{m.now(), into.DeepCopyObject(), err}
	return err
}

// forget drops what is too old, and all if that is too much still.
func (m *memory) forget() {
	for key, known := range m.of {
		if m.now().Sub(known.at) >= Remembered {
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
