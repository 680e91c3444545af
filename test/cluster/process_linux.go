package main

import "syscall"

// attributes puts a child into a process group of its own, so that an interrupt at the terminal reaches it only through
// us, and lets the kernel end it when we die, however we die.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// memoryOfMachine is in bytes; 0 if it isn't known.
func memoryOfMachine() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return info.Totalram * uint64(info.Unit)
}
