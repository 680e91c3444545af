package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/signalbox-dev/signalbox/test/cluster/gpus"
	"github.com/signalbox-dev/signalbox/test/cluster/machine"
)

// The networks of real nodes. They exist in the machine of namespaces only, so they can't meet others of the host.
const (
	planeAddress = "10.200.0.1" // of the control plane among the nodes
	nodeNetwork  = "10.200.0.%d"
	podNetwork   = "10.244.%d.0/24"
	allPods      = "10.244.0.0/16"
	serviceFirst = "10.0.0.1" // of the API server's Service
)

// Whom the API server is to the APIs behind it, and to kubelets.
const (
	frontProxy    = "front-proxy"
	kubeletClient = "kube-apiserver-kubelet-client"
)

// gpusOfNode is how many GPUs the device plugin of each real node serves.
const gpusOfNode = 4

// real are nodes with a kubelet, containerd and kube-proxy each, on which the managers run as pods.
type real struct{ *plan }

func (g real) steps() []func(context.Context) error {
	return []func(context.Context) error{
		g.startEtcd, g.connect, g.startAPIServer, g.prepareNamespaces,
		func(ctx context.Context) error {
			return together(ctx, g.startControllerManager, g.startScheduler, g.startKWOK, g.startDNS, g.startNodes,
				g.installCharts)
		},
	}
}

func (g real) flags(component string) []string {
	switch component {
	case "kube-apiserver":
		return []string{
			"--bind-address", "0.0.0.0", "--advertise-address", planeAddress,
			"--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
			// Pods answer for their Services without a kube-proxy beside the API server.
			"--enable-aggregator-routing",
			"--kubelet-preferred-address-types", "InternalIP", "--kubelet-certificate-authority", g.layout.pki("ca.crt"),
			"--kubelet-client-certificate", filepath.Join(g.layout.pki(kubeletClient), "tls.crt"),
			"--kubelet-client-key", filepath.Join(g.layout.pki(kubeletClient), "tls.key"),
			// Kueue serves an API of its own behind this one.
			"--requestheader-client-ca-file", g.layout.pki("ca.crt"), "--requestheader-allowed-names", frontProxy,
			"--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group",
			"--requestheader-extra-headers-prefix", "X-Remote-Extra-",
			"--proxy-client-cert-file", filepath.Join(g.layout.pki(frontProxy), "tls.crt"),
			"--proxy-client-key-file", filepath.Join(g.layout.pki(frontProxy), "tls.key"),
			// A node that is lost has lost its pods after seconds, not after six minutes.
			"--default-not-ready-toleration-seconds", "5", "--default-unreachable-toleration-seconds", "5",
		}
	case "kube-controller-manager":
		return []string{"--node-monitor-grace-period", "12s", "--node-monitor-period", "2s"}
	case "kwok":
		return []string{"--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake",
			"--node-lease-duration-seconds", "12"}
	}
	return nil
}

// worker is a real node.
type worker struct {
	number        int
	name, address string
	pods          string // the network of its pods
}

func (p profile) workers() []worker {
	var all []worker
	for i := 1; i <= p.nodes; i++ {
		all = append(all, worker{number: i, name: fmt.Sprintf("node-%d", i), address: fmt.Sprintf(nodeNetwork, 10+i),
			pods: fmt.Sprintf(podNetwork, i)})
	}
	return all
}

// of is the name of a component on the node, such as kubelet-1.
func (w worker) of(component string) string { return fmt.Sprintf("%s-%d", component, w.number) }

// clients are the identities of the nodes' components.
func (p profile) clients() []identity {
	if p.nodes == 0 {
		return identities
	}
	all := append([]identity{}, identities...)
	for _, w := range p.workers() {
		all = append(all, identity{file: w.of("kubelet"), name: "system:node:" + w.name, groups: []string{"system:nodes"},
			remote: true})
	}
	return append(all, identity{file: "kube-proxy", name: "system:kube-proxy", remote: true},
		identity{file: "coredns", name: "coredns", groups: []string{masters}})
}

// connect makes the network that the nodes are in, and the way in from outside the machine.
func (g real) connect(ctx context.Context) error {
	if _, err := g.ca.serving(g.layout, frontProxy); err != nil {
		return err
	}
	if _, err := g.ca.serving(g.layout, kubeletClient, masters); err != nil {
		return err
	}
	if err := receive(ctx, g.layout, g.ports["kube-apiserver"]); err != nil {
		return err
	}
	if err := machine.Bridge(planeAddress + "/24"); err != nil {
		return err
	}
	for _, w := range g.profile.workers() {
		if err := machine.Route(w.pods, w.address); err != nil {
			return err
		}
	}
	return nil
}

// addresses are those that certificates name.
func (p profile) addresses() []net.IP {
	all := []net.IP{net.IPv4(127, 0, 0, 1)}
	if p.nodes > 0 {
		all = append(all, net.ParseIP(planeAddress), net.ParseIP(serviceFirst))
	}
	for _, w := range p.workers() {
		all = append(all, net.ParseIP(w.address))
	}
	return all
}

func (g real) startDNS(ctx context.Context) error {
	ready := hostPort(g.ports["coredns"])
	if err := g.asset("Corefile", map[string]any{
		"DNS": planeAddress, "Ready": ready, "Kubeconfig": g.layout.kubeconfig("coredns")}); err != nil {
		return err
	}
	return g.s.add(ctx, component{name: "coredns", binary: g.binaries["coredns"],
		args: []string{"-conf", g.layout.config("Corefile")}, ready: answers("http://" + ready + "/ready")})
}

func (g real) startNodes(ctx context.Context) error {
	plugged := filepath.Join(g.layout.state, "plugins")
	if err := os.MkdirAll(plugged, 0o755); err != nil {
		return err
	}
	for _, p := range plugins {
		if err := os.Symlink(g.binaries[p.name], filepath.Join(plugged, p.name)); err != nil {
			return err
		}
	}
	s, err := newStore(g.layout)
	if err != nil {
		return err
	}
	own, err := g.ownImages()
	if err != nil {
		return err
	}
	var starts []func(context.Context) error
	for _, w := range g.profile.workers() {
		starts = append(starts, func(ctx context.Context) error {
			lib := filepath.Join(g.layout.node(w.name), "lib")
			if err := s.copyTo(ctx, filepath.Join(lib, "containerd")); err != nil {
				return err
			}
			for _, start := range []func(context.Context, worker) error{
				g.startMachine, g.startContainerd, g.importer(own), g.startKubelet, g.startProxy, g.startGPUs,
			} {
				if err := start(ctx, w); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return together(ctx, starts...)
}

func (g real) startMachine(ctx context.Context, w worker) error {
	n := machine.Node{
		Name: w.name, Dir: g.layout.node(w.name), Visible: []string{g.layout.repo, g.layout.cache, g.layout.state},
		Address: w.address + "/24", Gateway: planeAddress, DNS: planeAddress, Routes: map[string]string{},
	}
	for _, other := range g.profile.workers() {
		if other != w {
			n.Routes[other.pods] = other.address
		}
	}
	args, attributes, err := machine.NodeArgs(n)
	if err != nil {
		return err
	}
	return g.s.add(ctx, component{name: w.name, binary: "/proc/self/exe", args: args, attributes: attributes,
		// A machine that starts again has no control groups, nor anything else that the kernel keeps.
		before: func() error {
			return errors.Join(removeIfThere(n.Up()), machine.RemoveGroup(g.group(w)), machine.MakeGroup(g.group(w)))
		},
		ready: func(context.Context) error { _, err := os.Stat(n.Up()); return err }})
}

func (g real) group(w worker) string { return g.layout.group() + "/" + w.name }

func (g real) startKubelet(ctx context.Context, w worker) error {
	name := w.of("kubelet")
	certs, err := g.ca.serving(g.layout, name)
	if err != nil {
		return err
	}
	if err := g.assetAs("kubelet.yaml", name+".yaml", map[string]any{
		"CA": g.layout.pki("ca.crt"), "Certs": certs, "DNS": planeAddress, "Group": g.group(w),
	}); err != nil {
		return err
	}
	return g.s.add(ctx, component{name: name, on: w.name, binary: g.binaries["kubelet"],
		args: []string{
			"--config", g.layout.config(name + ".yaml"), "--kubeconfig", g.layout.kubeconfig(name),
			"--hostname-override", w.name, "--node-ip", w.address,
			"--node-labels", "gpu=simulated,example.com/gpu=simulated",
		},
		env:   []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"},
		ready: g.nodeIs(w, "not Ready", isReady)})
}

// nodeIs is a readiness check on the node's object.
func (g real) nodeIs(w worker, otherwise string, is func(*unstructured.Unstructured) bool) func(context.Context) error {
	return func(ctx context.Context) error {
		node, err := g.applier.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).Get(ctx, w.name,
			metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !is(node) {
			return fmt.Errorf("%s is %s", w.name, otherwise)
		}
		return nil
	}
}

func isReady(node *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(node.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" {
			return err == nil
		}
	}
	return false
}

func (g real) startProxy(ctx context.Context, w worker) error {
	name := w.of("kube-proxy")
	if err := g.assetAs("kube-proxy.yaml", name+".yaml", map[string]any{
		"Kubeconfig": g.layout.kubeconfig("kube-proxy"), "Node": w.name, "Pods": allPods}); err != nil {
		return err
	}
	return g.s.add(ctx, component{name: name, on: w.name, binary: g.binaries["kube-proxy"],
		args: []string{"--config", g.layout.config(name + ".yaml")},
		env:  []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"},
		// It listens in the node's network, which this machine reaches.
		ready: answers("http://" + net.JoinHostPort(w.address, "10256") + "/healthz")})
}

func (g real) startGPUs(ctx context.Context, w worker) error {
	want := strconv.Itoa(gpusOfNode)
	return g.s.add(ctx, component{name: w.of("gpus"), on: w.name, binary: "/proc/self/exe",
		args: []string{"gpus", want},
		ready: g.nodeIs(w, "without its GPUs", func(node *unstructured.Unstructured) bool {
			have, _, err := unstructured.NestedString(node.Object, "status", "allocatable", gpus.Resource)
			return err == nil && have == want
		})})
}

// serveGPUs is the command of a node's device plugin.
func serveGPUs(ctx context.Context, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	return gpus.Serve(ctx, n)
}
