package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/signalbox-dev/signalbox/test/junit"
)

// folder has a file for each step and suite.
const folder = "suites"

// record is what a step or a suite did.
type record struct {
	Name  string    `json:"name"`
	Began time.Time `json:"began"`
	// Took is zero as long as it runs, and if it was killed.
	Took time.Duration `json:"took"`
	// OK is whether it succeeded, after failed specs were run again.
	OK     bool `json:"ok"`
	Specs  bool `json:"specs"`
	Passed int  `json:"passed"`
	// Flaked are specs that failed, and passed when they were run again. Failed are all other failures.
	Flaked []failure `json:"flaked,omitempty"`
	Failed []failure `json:"failed,omitempty"`
}

// failure is a spec that failed, or what runs around specs, and why.
type failure struct {
	Spec    string `json:"spec"`
	Message string `json:"message"`
}

func failureOf(c junit.Case) failure { return failure{Spec: c.Title(), Message: c.Message()} }

var separators = regexp.MustCompile(`[^a-zA-Z0-9.=-]+`)

func (r record) write() error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, separators.ReplaceAllString(r.Name, "-")+".json"), content, 0o644)
}

// readRecords returns all records, in the order in which they began.
func readRecords() ([]record, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []record
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var r record
		if err := json.Unmarshal(content, &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b record) int { return a.Began.Compare(b.Began) })
	return all, nil
}
