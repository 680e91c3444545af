package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/signalbox-dev/signalbox/test/cluster/machine"
)

// up starts a control plane in the background, in place of one that runs.
func up(ctx context.Context, l layout, p profile) error {
	if err := down(l); err != nil {
		return err
	}
	// Building here shows its progress to the user and lets an interrupt end it.
	if _, err := buildAll(ctx, l, p); err != nil {
		return err
	}
	if err := l.fresh(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(l.log("cluster"))
	if err != nil {
		return err
	}
	defer log.Close()
	serve := exec.Command(self, "serve", "--root", l.repo, "--profile", p.name, "--relayed="+strconv.FormatBool(p.relayed))
	serve.Args = append(serve.Args, p.versions.arguments()...)
	serve.Stdout, serve.Stderr = log, log
	serve.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	start := time.Now()
	if err := serve.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	for {
		if _, err := os.Stat(l.ready()); err == nil {
			fmt.Fprintf(os.Stderr, "The control plane (profile %s) is ready after %s.\n  export KUBECONFIG=%s\n",
				p.name, time.Since(start).Round(100*time.Millisecond), l.kubeconfig(""))
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("the control plane did not start:\n%s", lastLines(l.log("cluster"), 25))
		case <-ctx.Done():
			return errors.Join(ctx.Err(), serve.Process.Signal(syscall.SIGTERM), <-ended)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// serve runs a control plane until it is told to stop or a component dies.
func serve(ctx context.Context, l layout, p profile) error {
	made, err := ready(ctx, l, p)
	if err != nil {
		return err
	}
	return hold(ctx, l, p, made, untilDeath)
}

func untilDeath(ctx context.Context, died <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-died:
		return err
	}
}

// commandError is the failure of the command that run was given, apart from any of our own.
type commandError struct{ *exec.ExitError }

// runCommand runs a command on a control plane of its own, which ends with it.
func runCommand(ctx context.Context, l layout, p profile, command []string) error {
	if len(command) == 0 {
		return errors.New("run takes a command after --")
	}
	made, err := prepare(ctx, l, p)
	if err != nil {
		return err
	}
	start := time.Now()
	return hold(ctx, l, p, made, func(ctx context.Context, died <-chan error) error {
		fmt.Fprintf(os.Stderr, "The control plane (profile %s) is ready after %s.\n", p.name,
			time.Since(start).Round(100*time.Millisecond))
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(),
			"KUBECONFIG="+l.kubeconfig(""),
			"SIGNALBOX_CLUSTER="+l.state,
			"SIGNALBOX_PROFILE="+p.name,
		)
		cmd.Env = append(cmd.Env, p.versions.environment()...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 20 * time.Second
		if err := cmd.Start(); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				return commandError{exit}
			}
			return err
		case err := <-died:
			fmt.Fprintln(os.Stderr, "cluster:", err)
			cancel()
			<-ended
			return err
		}
	})
}

// hold starts the control plane, calls during, and ends every process whatever happened.
func hold(ctx context.Context, l layout, p profile, made *prepared,
	during func(context.Context, <-chan error) error) (err error) {
	if !machine.Inside() { // else the process outside has done it
		release, err := lockState(l)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	s := newSupervisor(l)
	if p.relayed {
		s.env = []string{"DISABLE_HTTP2=true"} // see relay
	}
	defer func() { err = errors.Join(err, s.stopAll()) }()
	x, err := startAll(ctx, l, p, made, s)
	if err != nil {
		return err
	}
	control, err := serveControl(ctx, x)
	if err != nil {
		return err
	}
	defer control.Close()
	if err := os.WriteFile(l.ready(), nil, 0o644); err != nil {
		return err
	}
	return during(ctx, s.died)
}

func writePID(file *os.File) error {
	_, err := fmt.Fprint(file, os.Getpid())
	return err
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// down stops the control plane that runs here, if any, and returns when all of it is gone.
func down(l layout) error {
	file, err := os.Open(l.pid())
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if lock(file) == nil {
		return os.Remove(l.pid()) // nobody holds it: its process is gone, and the kernel took the children with it
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return fmt.Errorf("%s holds no process id: %w", l.pid(), err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping process %d: %w", pid, err)
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if lock(file) == nil {
			return nil
		}
	}
	return fmt.Errorf("process %d does not stop; see %s", pid, l.log("cluster"))
}

// await waits for the lock on a file; closing it releases the lock.
func await(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX) }

// lock takes the lock that a running control plane holds on its pid file.
func lock(file *os.File) error {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
