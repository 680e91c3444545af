package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// attributes puts a child into a process group of its own, so that an interrupt at the terminal reaches it only through
// us, and lets the kernel end it when we die, however we die.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// memoryOfMachine is in bytes, and no more than the container that this process is in may use; 0 if it isn't known.
func memoryOfMachine() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return limited(info.Totalram*uint64(info.Unit), "/sys/fs/cgroup/memory.max")
}

// limited returns a number of bytes, or the limit in a file of cgroup v2 if that is less. A file that isn't there, or
// says max, sets none.
func limited(bytes uint64, file string) uint64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return bytes
	}
	if limit, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
		return min(bytes, limit)
	}
	return bytes
}
