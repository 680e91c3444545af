package machine

import (
	"fmt"
	"maps"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Bridge joins the nodes of a machine to a network, and the machine itself with the given address.
func Bridge(address string) error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("making a bridge: %w", err)
	}
	return up(&netlink.Handle{}, bridge, address)
}

const bridgeName = "nodes"

// Route sends the packets for a network of pods to its node.
func Route(network, node string) error {
	_, destination, err := net.ParseCIDR(network)
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{Dst: destination, Gw: net.ParseIP(node)})
}

// Isolate drops what the machine sends to an address, or no longer: the control plane can't reach a pod, nor answer it.
func Isolate(address string, on bool) error {
	ip := net.ParseIP(address)
	if ip == nil {
		return fmt.Errorf("%q is no IP address of a pod", address)
	}
	hole := &netlink.Route{Dst: &net.IPNet{IP: ip.To4(), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_BLACKHOLE}
	if on {
		return netlink.RouteReplace(hole)
	}
	return netlink.RouteDel(hole)
}

// connect gives the node a network of its own, and one end of a cable whose other end is at the machine's bridge.
func (n Node) connect() error {
	machine, err := netns.Get()
	if err != nil {
		return err
	}
	defer machine.Close()
	outer, err := netlink.NewHandleAt(machine)
	if err != nil {
		return err
	}
	defer outer.Close()
	own, err := netns.New()
	if err != nil {
		return err
	}
	defer own.Close()
	if err := n.plug(outer, own); err != nil {
		return fmt.Errorf("cable: %w", err)
	}
	inner, err := netlink.NewHandleAt(own)
	if err != nil {
		return err
	}
	defer inner.Close()
	return n.route(inner)
}

// plug lays the cable between the machine's bridge and eth0 of the node.
func (n Node) plug(outer *netlink.Handle, own netns.NsHandle) error {
	bridge, err := outer.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	if old, err := outer.LinkByName(n.Name); err == nil { // of a node that was killed
		if err := outer.LinkDel(old); err != nil {
			return err
		}
	}
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: n.Name, MasterIndex: bridge.Attrs().Index},
		PeerName: "eth0", PeerNamespace: netlink.NsFd(own)}
	if err := outer.LinkAdd(cable); err != nil {
		return err
	}
	return outer.LinkSetUp(cable)
}

// route gives the node its address, and its ways to the pods of the others and to all else.
func (n Node) route(inner *netlink.Handle) error {
	loopback, err := inner.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := inner.LinkSetUp(loopback); err != nil {
		return err
	}
	eth0, err := inner.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := up(inner, eth0, n.Address); err != nil {
		return fmt.Errorf("address %s: %w", n.Address, err)
	}
	routes := map[string]string{"0.0.0.0/0": n.Gateway}
	maps.Copy(routes, n.Routes)
	for network, by := range routes {
		_, destination, err := net.ParseCIDR(network)
		if err != nil {
			return err
		}
		if err := inner.RouteReplace(&netlink.Route{Dst: destination, Gw: net.ParseIP(by)}); err != nil {
			return fmt.Errorf("route to %s by %s: %w", network, by, err)
		}
	}
	return nil
}

func up(h *netlink.Handle, link netlink.Link, address string) error {
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := h.AddrAdd(link, a); err != nil {
		return err
	}
	return h.LinkSetUp(link)
}
