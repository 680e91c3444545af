package watched

import "sync"

// Changes counts changes, and tells those who wait for the next one.
type Changes struct {
	mu    sync.Mutex
	count uint64
	next  chan struct{}
}

// Add counts a change.
func (c *Changes) Add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}

// Since returns how many changes there were, and a channel that is closed at the next one.
func (c *Changes) Since() (uint64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(chan struct{})
	}
	return c.count, c.next
}
