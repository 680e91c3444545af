package hostile

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Load is requests that several clients send, each one after the other.
type Load struct {
	// Requests is how many are sent in all.
	Requests int
	// Clients is how many wait for answers at a time.
	Clients int
	// Interval is the time from one request to the next of all clients, 0 for none. It is longer where all wait.
	Interval time.Duration
}

// Outcome is what became of the requests of a Load.
type Outcome struct {
	// Answers are how many requests had each answer.
	Answers map[string]int `json:"answers"`
	// Seconds is how long it took to send all and to have their answers.
	Seconds float64 `json:"seconds"`
}

// Add adds the outcome of a load that was sent at the same time.
func (o *Outcome) Add(other Outcome) {
	if o.Answers == nil {
		o.Answers = map[string]int{}
	}
	for answer, n := range other.Answers {
		o.Answers[answer] += n
	}
	o.Seconds = max(o.Seconds, other.Seconds)
}

// Send sends all requests, or those until ctx is done. send sends the nth and returns its answer in a few words.
func (l Load) Send(ctx context.Context, send func(ctx context.Context, n int) string) Outcome {
	var (
		clients sync.WaitGroup
		next    atomic.Int64
		mu      sync.Mutex
	)
	all, began := Outcome{Answers: map[string]int{}}, time.Now()
	for range l.Clients {
		clients.Go(func() {
			for {
				n := int(next.Add(1) - 1)
				if n >= l.Requests || !until(ctx, began.Add(time.Duration(n)*l.Interval)) {
					return
				}
				answer := send(ctx, n)
				mu.Lock()
				all.Answers[answer]++
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	all.Seconds = time.Since(began).Seconds()
	return all
}

// until waits for a time, and reports whether ctx isn't done.
func until(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
