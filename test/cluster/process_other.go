//go:build !linux

package main

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func memoryOfMachine() uint64 { return 0 }
