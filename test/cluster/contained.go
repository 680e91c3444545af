package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/signalbox-dev/signalbox/test/cluster/machine"
)

// prepared is what a start needs and what is made before it. A machine of real nodes reads it from a file, because it
// has no network to build anything with.
type prepared struct {
	Binaries map[string]string
	// Port is the API server's where real nodes run, 0 where it may choose one.
	Port int
}

// prepare builds what the profile needs and empties what an earlier control plane left.
func prepare(ctx context.Context, l layout, p profile) (*prepared, error) {
	if machine.Inside() {
		content, err := os.ReadFile(l.config("prepared.json"))
		if err != nil {
			return nil, err
		}
		made := new(prepared)
		return made, json.Unmarshal(content, made)
	}
	if err := down(l); err != nil {
		return nil, err
	}
	binaries, err := buildAll(ctx, l, p)
	if err != nil {
		return nil, err
	}
	return &prepared{Binaries: binaries}, l.fresh()
}

// contain runs this same command in a machine of its own. What runs in there is reached from outside by the API
// server's port on loopback, and by the files and sockets under .cluster.
func contain(ctx context.Context, l layout, p profile, args []string) (err error) {
	begin := prepare
	if args[0] == "serve" { // up has prepared the rest
		begin = ready
	}
	made, err := begin(ctx, l, p)
	if err != nil {
		return err
	}
	release, err := lockState(l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer outside.Close()
	made.Port = outside.Addr().(*net.TCPAddr).Port
	data, err := json.Marshal(made)
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.config("prepared.json"), data, 0o644); err != nil {
		return err
	}
	go passOn(outside, "unix", l.apiSocket())
	err = machine.Contain(ctx, l.group(), args...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return commandError{exit} // what runs inside has said why
	}
	return err
}

// receive lets what runs outside the machine reach the API server, by a socket on the disk that both have.
func receive(ctx context.Context, l layout, port int) error {
	listener, err := net.Listen("unix", l.apiSocket())
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	go passOn(listener, "tcp", hostPort(port))
	return nil
}

// passOn joins every connection that is made with one to the address, until the listener is closed.
func passOn(listener net.Listener, network, address string) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer from.Close()
			to, err := net.Dial(network, address)
			if err != nil {
				return // like a refused connection
			}
			defer to.Close()
			ended := make(chan struct{}, 2)
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1]) // its end, with or without an error, ends both
					ended <- struct{}{}
				}()
			}
			<-ended
		}()
	}
}

// lockState takes the folder of the control plane for this process, until release.
func lockState(l layout) (release func() error, err error) {
	pid, err := os.Create(l.pid())
	if err != nil {
		return nil, err
	}
	if err := lock(pid); err != nil {
		return nil, errors.Join(errors.New("another control plane is starting here"), err, pid.Close())
	}
	if err := writePID(pid); err != nil {
		return nil, errors.Join(err, pid.Close())
	}
	return func() error {
		return errors.Join(os.Remove(l.pid()), removeIfThere(l.ready()), pid.Close())
	}, nil
}

func (l layout) apiSocket() string { return filepath.Join(l.state, "api.sock") }

// ready returns what up has prepared for the process that serves.
func ready(ctx context.Context, l layout, p profile) (*prepared, error) {
	if machine.Inside() {
		return prepare(ctx, l, p)
	}
	binaries, err := buildAll(ctx, l, p)
	return &prepared{Binaries: binaries}, err
}
