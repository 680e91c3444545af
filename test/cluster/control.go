package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"github.com/signalbox-dev/signalbox/test/cluster/machine"
)

// serveControl lets tests act on single components: POST /kill/signalbox and the like, on a socket under .cluster.
func serveControl(ctx context.Context, x *plan) (*http.Server, error) {
	listener, err := net.Listen("unix", x.layout.socket())
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{action}/{component}", func(w http.ResponseWriter, r *http.Request) {
		if err := act(ctx, x, r.PathValue("action"), r.PathValue("component")); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	server := &http.Server{Handler: mux}
	go server.Serve(listener) //nolint:errcheck // it always ends with ErrServerClosed, when we close it
	return server, nil
}

func act(ctx context.Context, x *plan, action, component string) error {
	s := x.s
	switch action {
	case "kill":
		return s.stop(component, syscall.SIGKILL)
	case "stop":
		return s.stop(component, syscall.SIGTERM)
	case "start":
		return s.start(ctx, component)
	case "restart":
		if err := s.stop(component, syscall.SIGTERM); err != nil {
			return err
		}
		return s.start(ctx, component)
	}
	if relayActions[action] != nil {
		return x.relayed(action, component)
	}
	switch action {
	case "break", "repair":
		return x.damage(ctx, component, action == "break")
	case "isolate":
		return machine.Isolate(component, true)
	case "reconnect":
		return machine.Isolate(component, false)
	}
	switch action + " " + component {
	case "fill etcd":
		return x.alarmEtcd(ctx, "ACTIVATE")
	case "empty etcd":
		return x.alarmEtcd(ctx, "DEACTIVATE")
	case "upgrade trainer":
		return x.upgradeTrainer(ctx)
	case "upgrade kubernetes":
		return x.upgradeKubernetes(ctx)
	case "disable gangs", "enable gangs":
		return x.serveGangs(ctx, action == "enable")
	}
	return fmt.Errorf("no action %q of %s; there are kill, stop, start, restart, cut, stall, flow, upgrade of trainer "+
		"and kubernetes, disable and enable of gangs, fill and empty of etcd, isolate and reconnect of a pod's address, "+
		"break and repair of a real node's gpus and images", action, component)
}

// alarmEtcd raises or ends the alarm by which etcd takes no more writes: the one that it raises when its disk, or its
// quota of it, is full.
func (x *plan) alarmEtcd(ctx context.Context, action string) error {
	body := fmt.Sprintf(`{"action": %q, "alarm": "NOSPACE"}`, action)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+hostPort(x.ports["etcd"])+"/v3/maintenance/alarm", strings.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers %s", response.Status)
	}
	return nil
}

// serveGangs restarts Kubernetes with the Workload and PodGroup API, or without it, as most clusters of 1.36 are.
func (x *plan) serveGangs(ctx context.Context, on bool) error {
	k := x.profile.versions.kubernetes
	return x.restartKubernetes(ctx, func(name string, c *component) {
		flags := k.flags(name)
		c.args = slices.DeleteFunc(slices.Clone(c.args), func(arg string) bool { return slices.Contains(flags, arg) })
		if on {
			c.args = append(c.args, flags...)
		}
	})
}

// upgradeKubernetes puts the profile's next release of Kubernetes' control plane in the place of the one that runs.
func (x *plan) upgradeKubernetes(ctx context.Context) error {
	next := x.profile.versions.next
	if next == nil {
		return errors.New("there is no release to upgrade to; start with --next-kubernetes")
	}
	before := x.profile.versions.kubernetes
	x.profile.versions.kubernetes, x.profile.versions.next = *next, nil
	return x.restartKubernetes(ctx, func(name string, c *component) {
		c.binary = x.binaries[upgraded(name)]
		flags := before.flags(name)
		c.args = slices.DeleteFunc(slices.Clone(c.args), func(arg string) bool { return slices.Contains(flags, arg) })
		c.args = append(c.args, next.flags(name)...)
	})
}

// restartKubernetes stops Kubernetes' control plane, changes how its components run, and starts it.
func (x *plan) restartKubernetes(ctx context.Context, revise func(name string, c *component)) error {
	for _, name := range slices.Backward(controlPlane) {
		if err := x.s.stop(name, syscall.SIGKILL); err != nil { // a clean goodbye takes each of them seconds
			return err
		}
		x.s.revise(name, func(c *component) { revise(name, c) })
	}
	for _, name := range controlPlane {
		if err := x.s.start(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func callControl(l layout, action, component string) error {
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", l.socket())
		},
	}}
	response, err := client.Post("http://cluster/"+action+"/"+component, "", nil)
	if err != nil {
		return fmt.Errorf("no control plane runs here: %w; start one with make cluster", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		return fmt.Errorf("%s %s: %s", action, component, strings.TrimSpace(string(message)))
	}
	return nil
}
