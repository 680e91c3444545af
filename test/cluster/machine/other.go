//go:build !linux

package machine

import (
	"context"
	"errors"
	"syscall"
)

var errOther = errors.New("real nodes need Linux")

// Node is a machine within the machine.
type Node struct {
	Name, Dir, Address, Gateway, DNS string
	Visible                          []string
	Routes                           map[string]string
}

// Up is the file that appears when the node is made.
func (n Node) Up() string { return "" }

// Inside reports whether this process runs in a machine.
func Inside() bool { return false }

// Main takes no command here.
func Main([]string) (bool, error) { return false, nil }

// Contain says that it needs Linux.
func Contain(context.Context, string, ...string) error { return errOther }

// Bridge says that it needs Linux.
func Bridge(string) error { return errOther }

// Route says that it needs Linux.
func Route(string, string) error { return errOther }

// Isolate says that it needs Linux.
func Isolate(string, bool) error { return errOther }

// MakeGroup says that it needs Linux.
func MakeGroup(string) error { return errOther }

// RemoveGroup says that it needs Linux.
func RemoveGroup(string) error { return errOther }

// NodeArgs says that it needs Linux.
func NodeArgs(Node) ([]string, *syscall.SysProcAttr, error) { return nil, nil, errOther }

// Thread runs functions.
type Thread struct{}

// NewThread returns one.
func NewThread() *Thread { return &Thread{} }

// Do runs f.
func (t *Thread) Do(f func() error) error { return f() }

// End ends it.
func (t *Thread) End() {}

// Join says that it needs Linux.
func Join(int) (*Thread, error) { return nil, errOther }
