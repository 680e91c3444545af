package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/signalbox-dev/signalbox/test/cluster/machine"
)

// component is one process of the control plane.
type component struct {
	name   string
	binary string
	args   []string
	env    []string
	// on is the component that makes the node that it runs on; "" is the control plane's own machine.
	on string
	// attributes are those of its process; attributes() where it is nil.
	attributes *syscall.SysProcAttr
	// before runs before each start; nil for nothing.
	before func() error
	// ready reports whether it serves; it is polled.
	ready func(context.Context) error
}

// process is a running component.
type process struct {
	cmd *exec.Cmd
	// wanted is closed when its end is requested, so that the end is no failure.
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
	// here forks what runs on this machine. A child's parent-death signal follows the thread that forked it, so one thread
	// forks all and never ends.
	here *machine.Thread
	env  []string // of every component

	mu        sync.Mutex
	specs     map[string]component
	processes map[string]*process
	nodes     map[string]*machine.Thread // by the component that makes the node
	order     []string
}

func newSupervisor(l layout) *supervisor {
	return &supervisor{
		layout: l, died: make(chan error, 1), here: machine.NewThread(),
		specs: map[string]component{}, processes: map[string]*process{}, nodes: map[string]*machine.Thread{},
	}
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
func (s *supervisor) revise(name string, change func(*component)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.specs[name]
	change(&c)
	s.specs[name] = c
}

// start starts a component, and what runs on it where it is a node, and returns when all are ready.
func (s *supervisor) start(ctx context.Context, name string) error {
	if err := s.startOne(ctx, name); err != nil {
		return err
	}
	for _, hosted := range s.on(name) {
		if err := s.startOne(ctx, hosted); err != nil {
			return err
		}
	}
	return nil
}

// on returns the components that run on a node, in the order of their first start.
func (s *supervisor) on(node string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.order), func(name string) bool { return s.specs[name].on != node })
}

func (s *supervisor) startOne(ctx context.Context, name string) error {
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
	if c.before != nil {
		if err := c.before(); err != nil {
			return fmt.Errorf("starting %s: %w", name, err)
		}
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
	cmd.SysProcAttr = cmp.Or(c.attributes, attributes())
	if c.on != "" {
		// It ends with its node. Go takes the parent of a process in another process namespace, which the child can't see,
		// for dead, and would end the child at once.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	thread, err := s.thread(c.on)
	if err != nil {
		return nil, err
	}
	if err := thread.Do(cmd.Start); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, wanted: make(chan struct{}), ready: make(chan struct{}), done: make(chan struct{})}
	s.mu.Lock()
	s.processes[c.name] = p
	s.mu.Unlock()
	go s.watch(c.name, p)
	return p, nil
}

// run runs a short command on a node.
func (s *supervisor) run(ctx context.Context, node, binary string, args ...string) error {
	thread, err := s.thread(node)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &out, "/"
	if err := thread.Do(cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s %s on %s: %w\n%s", binary, strings.Join(args, " "), node, err, out.String())
	}
	return nil
}

// thread is the one to fork on: this machine's, or one that has entered the node.
func (s *supervisor) thread(node string) (*machine.Thread, error) {
	if node == "" {
		return s.here, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.nodes[node]; t != nil {
		return t, nil
	}
	p, running := s.processes[node]
	if !running {
		return nil, fmt.Errorf("%s is not running", node)
	}
	t, err := machine.Join(p.cmd.Process.Pid)
	if err == nil {
		s.nodes[node] = t
	}
	return t, err
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

// stop ends a component by the signal and waits for it; one that doesn't go is killed. With a node ends at once what
// runs on it, as with a machine that loses its power.
func (s *supervisor) stop(name string, signal syscall.Signal) error {
	s.mu.Lock()
	p, running := s.processes[name]
	thread := s.nodes[name]
	delete(s.nodes, name)
	s.mu.Unlock()
	if !running {
		return fmt.Errorf("%s is not running", name)
	}
	if hosted := s.on(name); len(hosted) > 0 {
		for _, h := range hosted {
			s.want(h)
		}
		signal = syscall.SIGKILL
	}
	if thread != nil {
		thread.End()
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

// want says that a component's end is no failure.
func (s *supervisor) want(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.processes[name]; p != nil && !closed(p.wanted) {
		close(p.wanted)
	}
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
		here := s.specs[names[i]].on == "" // what runs on a node ends with it
		s.mu.Unlock()
		if running && here {
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
