package main

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// deeds are what users do with TrainJobs on the page, one at a time for each: a restart that still waits for pods to
// end must not undo a later stop.
type deeds struct {
	mu sync.Mutex
	of map[types.UID]*deed
}

// deed is what was done with a TrainJob, and what came of it.
type deed struct {
	cancel context.CancelFunc
	at     time.Time
	said   string
}

// Of a deed: how long the browser waits for it, how long it may take, and for how long it is told.
const (
	actWait = 5 * time.Second
	actTime = 15 * time.Minute
	actTold = time.Minute
)

// begin runs something in the background, after an earlier deed with the TrainJob was ended, and returns a channel that
// is closed when it is over. told is called then.
func (d *deeds) begin(
	ctx context.Context, uid types.UID, says string, do func(context.Context) (string, error), told func(),
) <-chan struct{} {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actTime) // the browser may go meanwhile
	this, over := &deed{cancel: cancel, at: time.Now(), said: says}, make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = map[types.UID]*deed{}
	}
	for other, earlier := range d.of {
		if other == uid {
			earlier.cancel()
		} else if time.Since(earlier.at) > actTime {
			delete(d.of, other)
		}
	}
	d.of[uid] = this
	go func() {
		defer close(over)
		defer cancel()
		said, err := do(ctx)
		if err != nil {
			said = err.Error()
		}
		d.mu.Lock()
		this.at, this.said = time.Now(), said
		d.mu.Unlock()
		told()
	}()
	return over
}

// told returns what is to be said of the last deed with a TrainJob; "" for nothing.
func (d *deeds) told(uid types.UID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if last := d.of[uid]; last != nil && time.Since(last.at) < actTold {
		return last.said
	}
	return ""
}
