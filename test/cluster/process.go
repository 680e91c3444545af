package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// component is one process of the control plane.
type component struct {
	name   string
	binary string
	args   []string
	env    []string
	// ready tells whether it serves; it is polled.
	ready func(context.Context) error
}

// process is a running component.
type process struct {
	cmd *exec.Cmd
	// wanted is closed when somebody asks for its end, so that the end is no failure.
	wanted chan struct{}
	// ready is closed when it serves; an end before that is the starter's to report.
	ready chan struct{}
	done  chan struct{}
	// err is how it ended; to be read after done.
	err error
}

// supervisor starts components, reports the death of any that was not asked for, and ends them all.
type supervisor struct {
	layout layout
	died   chan error // the first unasked death
	forks  chan func()
	env    []string // of every component

	mu        sync.Mutex
	specs     map[string]component
	processes map[string]*process
	order     []string
}

func newSupervisor(l layout) *supervisor {
	s := &supervisor{
		layout: l, died: make(chan error, 1), forks: make(chan func()),
		specs: map[string]component{}, processes: map[string]*process{},
	}
	// A child's parent-death signal follows the thread that forked it, so one thread forks all and never ends.
	go func() {
		runtime.LockOSThread()
		for fork := range s.forks {
			fork()
		}
	}()
	return s
}

// add starts a component and returns when it is ready.
func (s *supervisor) add(ctx context.Context, c component) error {
	s.mu.Lock()
	if _, known := s.specs[c.name]; !known {
		s.order = append(s.order, c.name)
	}
	s.specs[c.name] = c
	s.mu.Unlock()
	return s.start(ctx, c.name)
}

// revise changes what a component is started with the next time.
func (s *supervisor) revise(name string, args func([]string) []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.specs[name]
	c.args = args(c.args)
	s.specs[name] = c
}

func (s *supervisor) start(ctx context.Context, name string) error {
	s.mu.Lock()
	c, known := s.specs[name]
	running := s.processes[name]
	names := strings.Join(s.order, ", ")
	s.mu.Unlock()
	if !known {
		return fmt.Errorf("no component %q; there are %s", name, names)
	}
	if running != nil {
		return fmt.Errorf("%s runs already", name)
	}
	p, err := s.fork(c)
	if err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	return s.awaitReady(ctx, c, p)
}

func (s *supervisor) fork(c component) (*process, error) {
	log, err := os.OpenFile(s.layout.log(c.name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.binary, c.args...)
	cmd.Env = slices.Concat(os.Environ(), s.env, c.env)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = s.layout.state
	cmd.SysProcAttr = attributes()
	started := make(chan error)
	s.forks <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, wanted: make(chan struct{}), ready: make(chan struct{}), done: make(chan struct{})}
	s.mu.Lock()
	s.processes[c.name] = p
	s.mu.Unlock()
	go s.watch(c.name, p)
	return p, nil
}

// watch reports the death of a component that served and that nobody asked to end, at once and with its last words.
func (s *supervisor) watch(name string, p *process) {
	p.err = p.cmd.Wait()
	s.mu.Lock()
	if s.processes[name] == p {
		delete(s.processes, name)
	}
	s.mu.Unlock()
	close(p.done)
	if closed(p.wanted) || !closed(p.ready) {
		return
	}
	select {
	case s.died <- s.death(name, p):
	default: // an earlier death is being reported
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *supervisor) death(name string, p *process) error {
	err := p.err
	if err == nil {
		err = errors.New("it ended by itself")
	}
	return fmt.Errorf("component %s died: %w\nthe last lines of %s:\n%s", name, err, s.layout.log(name),
		lastLines(s.layout.log(name), 15))
}

const readyTimeout = 90 * time.Second

func (s *supervisor) awaitReady(ctx context.Context, c component, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var last error
	for {
		if last = c.ready(ctx); last == nil {
			close(p.ready)
			return nil
		}
		select {
		case <-p.done:
			return s.death(c.name, p)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\nthe last lines of %s:\n%s", c.name, last, s.layout.log(c.name),
				lastLines(s.layout.log(c.name), 15))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends a component by the signal and waits for it; one that doesn't go is killed.
func (s *supervisor) stop(name string, signal syscall.Signal) error {
	s.mu.Lock()
	p, running := s.processes[name]
	s.mu.Unlock()
	if !running {
		return fmt.Errorf("%s is not running", name)
	}
	close(p.wanted)
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		<-p.done
	}
	return nil
}

// stopAll kills what runs, the last started first. Nothing of a test control plane needs a clean goodbye but Signalbox,
// which writes its coverage then.
func (s *supervisor) stopAll() error {
	s.mu.Lock()
	names := append([]string(nil), s.order...)
	_, signalbox := s.processes["signalbox"]
	s.mu.Unlock()
	var errs []error
	if signalbox && coverage() != "" {
		errs = append(errs, s.stop("signalbox", syscall.SIGTERM))
	}
	for i := len(names) - 1; i >= 0; i-- {
		s.mu.Lock()
		_, running := s.processes[names[i]]
		s.mu.Unlock()
		if running {
			errs = append(errs, s.stop(names[i], syscall.SIGKILL))
		}
	}
	return errors.Join(errs...)
}

// lastLines returns the end of a file, for a message.
func lastLines(path string, n int) string {
	const tail = 16 << 10
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tail {
		if _, err := file.Seek(-tail, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return "  " + string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n  ")))
}
