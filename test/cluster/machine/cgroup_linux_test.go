package machine

import (
	"os"
	"path/filepath"
	"testing"
)

// A folder plays each hierarchy: what the kernel would put into a new group is there beforehand.
func TestGroupsAreReadyForAKubelet(t *testing.T) {
	levels := []string{"", "signalbox-1", "signalbox-1/node-1"}
	for _, test := range []struct {
		name    string
		unified bool
		files   map[string]string // of each level before
		above   map[string]string // of the root, instead
		want    map[string]string // of each level below the root
	}{
		{"version 1: the CPUs are copied from above", false,
			map[string]string{"cpuset.cpus": "\n", "cpuset.mems": "\n"},
			map[string]string{"cpuset.cpus": "0-3\n", "cpuset.mems": "0\n"},
			map[string]string{"cpuset.cpus": "0-3\n", "cpuset.mems": "0\n"}},
		{"version 1: CPUs that a group has stay", false,
			map[string]string{"cpuset.cpus": "1\n"}, map[string]string{"cpuset.cpus": "0-3\n"},
			map[string]string{"cpuset.cpus": "1\n"}},
		{"version 2: controllers are let through", true,
			map[string]string{"cgroup.controllers": "cpu memory\n", "cgroup.subtree_control": ""}, nil,
			map[string]string{"cgroup.subtree_control": "+cpu +memory"}},
		{"version 2: only what is not let through yet", true,
			map[string]string{"cgroup.controllers": "cpu memory\n", "cgroup.subtree_control": "cpu\n"}, nil,
			map[string]string{"cgroup.subtree_control": "+memory"}},
		{"version 2 beside version 1, which has the controllers", true,
			map[string]string{"cgroup.controllers": "\n", "cgroup.subtree_control": ""}, nil,
			map[string]string{"cgroup.subtree_control": ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for i, level := range levels {
				files := test.files
				if i == 0 && test.above != nil {
					files = test.above
				}
				if err := os.MkdirAll(filepath.Join(root, level), 0o755); err != nil {
					t.Fatal(err)
				}
				for name, content := range files {
					if err := os.WriteFile(filepath.Join(root, level, name), []byte(content), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := (hierarchy{path: root, unified: test.unified}).make("signalbox-1/node-1"); err != nil {
				t.Fatal(err)
			}
			for _, level := range levels[1:] {
				for name, want := range test.want {
					got, err := os.ReadFile(filepath.Join(root, level, name))
					if err != nil || string(got) != want {
						t.Errorf("%s of %s is %q (%v), want %q", name, level, got, err, want)
					}
				}
			}
		})
	}
}
