package main

import "syscall"

// attributes puts a child into a process group of its own, so that an interrupt at the terminal reaches it only through
// us, and lets the kernel end it when we die, however we die.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
