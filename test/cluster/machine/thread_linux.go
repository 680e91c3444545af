package machine

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Thread runs functions one after the other on one thread of the system. What they start with a parent-death signal
// lives as long as the thread, which is as long as this process.
type Thread struct {
	work chan func()
	gone chan struct{}
}

// NewThread starts a thread.
func NewThread() *Thread {
	t := &Thread{work: make(chan func()), gone: make(chan struct{})}
	go t.run()
	return t
}

func (t *Thread) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for {
		select {
		case f := <-t.work:
			f()
		case <-t.gone:
			return
		}
	}
}

// Do runs f on the thread and returns its error.
func (t *Thread) Do(f func() error) error {
	done := make(chan error)
	select {
	case t.work <- func() { done <- f() }:
		return <-done
	case <-t.gone:
		return errors.New("the thread has ended")
	}
}

// End ends the thread, and with it what was started on it with a parent-death signal.
func (t *Thread) End() { close(t.gone) }

// Join starts a thread in the namespaces of a node, which are those of its first process. What is started on it runs on
// the node.
func Join(pid int) (*Thread, error) {
	t := NewThread()
	if err := t.Do(func() error { return join(pid) }); err != nil {
		t.End()
		return nil, fmt.Errorf("entering the node of process %d: %w", pid, err)
	}
	return t, nil
}

func join(pid int) error {
	namespaces := []struct {
		name string
		flag int
	}{{"net", unix.CLONE_NEWNET}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS},
		{"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}
	files := make([]*os.File, len(namespaces))
	for i, n := range namespaces { // all before the last is entered, in which /proc is another
		var err error
		if files[i], err = os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, n.name)); err != nil {
			return err
		}
		defer files[i].Close()
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // or the mount namespace would be the whole process's
		return err
	}
	var errs []error
	for i, n := range namespaces {
		if err := unix.Setns(int(files[i].Fd()), n.flag); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n.name, err))
		}
	}
	return errors.Join(errs...)
}
