package main

import (
	"context"
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
	case "disable gangs", "enable gangs":
		return x.serveGangs(ctx, action == "enable")
	}
	return fmt.Errorf("no action %q of %s; there are kill, stop, start, restart, cut, stall, flow, upgrade of trainer, "+
		"disable and enable of gangs, fill and empty of etcd, isolate and reconnect of a pod's address", action, component)
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
	all := []string{"kube-controller-manager", "kube-scheduler", "kube-apiserver"}
	for _, name := range all {
		if err := x.s.stop(name, syscall.SIGKILL); err != nil { // a clean goodbye takes each of them seconds
			return err
		}
		x.s.revise(name, func(args []string) []string {
			args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == gangAPI || arg == gangGates })
			if !on {
				return args
			}
			if name == "kube-apiserver" {
				args = append(args, gangAPI)
			}
			return append(args, gangGates)
		})
	}
	slices.Reverse(all)
	for _, name := range all {
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
