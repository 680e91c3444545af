package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// need is something of this machine that real nodes can't do without, and that no Go module has.
type need struct {
	what    string
	missing func() bool
	mend    string
}

// program is needed to run, and comes with a package of Debian.
func program(name, of string) need {
	return need{what: name, mend: "apt-get install " + of, missing: func() bool {
		for _, folder := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
			if _, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
				return false
			}
		}
		return true
	}}
}

// require names everything that the profile lacks, with the command that installs it.
func (p profile) require(l layout) error {
	if p.nodes == 0 {
		return nil
	}
	needs := []need{
		{what: "Linux", mend: "run it on Linux", missing: func() bool { return runtime.GOOS != "linux" }},
		{what: "root", mend: "run it by sudo", missing: func() bool { return os.Getuid() != 0 }},
		{what: "control groups at /sys/fs/cgroup", mend: "mount them", missing: func() bool {
			entries, err := os.ReadDir("/sys/fs/cgroup")
			return err != nil || len(entries) == 0
		}},
		program("iptables", "iptables"), // which kube-proxy runs
	}
	if !built(l, runc) {
		needs = append(needs, program("gcc", "gcc libc6-dev"), program("pkg-config", "pkg-config"), need{
			what: "libseccomp's headers", mend: "apt-get install libseccomp-dev",
			missing: func() bool { return exec.Command("pkg-config", "--exists", "libseccomp").Run() != nil },
		})
	}
	if s, err := newStore(l); err != nil {
		return err
	} else if !s.filled() {
		needs = append(needs, program("mmdebstrap", "mmdebstrap"), need{
			what: "the keys of Debian's archive", mend: "apt-get install debian-archive-keyring",
			missing: func() bool {
				_, err := os.Stat("/usr/share/keyrings/debian-archive-keyring.gpg")
				return err != nil
			},
		})
	}
	var lines []string
	for _, n := range needs {
		if n.missing() {
			lines = append(lines, fmt.Sprintf("  %s: %s", n.what, n.mend))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("profile %s runs real nodes, and this is missing here:\n%s", p.name, strings.Join(lines, "\n"))
}

func built(l layout, p part) bool {
	path, err := p.binary(l)
	if err != nil {
		return false
	}
	_, err = os.Stat(path)
	return err == nil
}
