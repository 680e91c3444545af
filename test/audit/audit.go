// Package audit reads the audit log of a test control plane's API server: who has asked for what, and when.
package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Request is a line of the audit log.
type Request struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	RequestURI string `json:"requestURI"`
	ObjectRef  struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Annotations map[string]string `json:"annotations"`
	// Received and Answered are the API server's times of the request.
	Received time.Time `json:"requestReceivedTimestamp"`
	Answered time.Time `json:"stageTimestamp"`
}

// Writes reports whether the request is one that may change something.
func (r Request) Writes() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// Forbidden reports whether the request was refused because its user has no right to it.
func (r Request) Forbidden() bool { return r.Annotations["authorization.k8s.io/decision"] == "forbid" }

// DryRun reports whether the request was to change nothing.
func (r Request) DryRun() bool { return strings.Contains(r.RequestURI, "dryRun=All") }

// Log is the audit log of the control plane in a folder.
func Log(cluster string) string { return filepath.Join(cluster, "log", "audit.log") }

// End is where a log ends now, in bytes.
func End(log string) (int64, error) {
	info, err := os.Stat(log)
	if err != nil {
		return 0, fmt.Errorf("the audit log: %w", err)
	}
	return info.Size(), nil
}

// Since reads a log from an offset to its end, and returns what is taken.
func Since(log string, from int64, take func(Request) bool) ([]Request, error) {
	file, err := os.Open(log)
	if err != nil {
		return nil, fmt.Errorf("the audit log: %w", err)
	}
	defer file.Close()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return nil, fmt.Errorf("the audit log: %w", err)
	}
	var taken []Request
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r Request
		if json.Unmarshal(lines.Bytes(), &r) == nil && take(r) { // the last line may be half written
			taken = append(taken, r)
		}
	}
	return taken, lines.Err()
}
