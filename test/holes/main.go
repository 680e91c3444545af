// Command holes removes each fix of docs/security.md from a copy of the tree, runs the end-to-end specs that cover it,
// and prints how many fail and what `signalbox audit` finds. It exits with an error if no spec fails, or if the audit
// misses what it should find.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// hole removes a fix: in file, from is replaced by to.
type hole struct {
	name, file, from, to string
	// focus selects the specs that cover it.
	focus string
	// finds is the rule that audit must report; "" if the audit doesn't cover it.
	finds string
	// also names a hole without which this one stays closed, because two fixes hold the same; "" if there is none.
	also string
}

var holes = []hole{
	{
		name: "a deleted TrainJob's quota is free at once", file: "integration/observe.go",
		from:  "	if !holdQuota(o.workloads.own) {\n		o.left.over = true",
		to:    "	if true {\n		o.left.over = true",
		focus: "of a TrainJob that is deleted", finds: "no-quota",
	},
	{
		name: "a TrainJob that has ended gives its quota back while pods run", file: "integration/job.go",
		from:  "c.Type == trainerapi.TrainJobComplete, j.o.left.over",
		to:    "c.Type == trainerapi.TrainJobComplete, true",
		focus: "exceeds its deadline|success policy ends it", finds: "no-quota",
	},
	{
		name: "a deactivated Workload counts for nothing", file: "integration/deactivate.go",
		from:  "	type readable struct {",
		to:    "	return webhookadmission.Allowed(\"\")\n	type readable struct {",
		focus: "whose Workload is deactivated", finds: "no-quota",
	},
	{
		name: "an initializer's quota is reclaimed though it may run again", file: "podsets/status.go",
		from:  "unbounded || p.MaxRestarts > js.Status.RestartsCountTowardsMax",
		to:    "unbounded && p.MaxRestarts > js.Status.RestartsCountTowardsMax",
		focus: "of an initializer that may run again", finds: "exceeds-admission",
	},
	{
		name: "a user starts a TrainJob that is being deleted", file: "review/review.go",
		from:  "!r.Old.DeletionTimestamp.IsZero() && equality.",
		to:    "!r.Old.DeletionTimestamp.IsZero() || false && equality.",
		focus: "that its user starts",
	},
	{
		name: "a TrainJob is said to be deleted when it is created", file: "review/review.go",
		from:  "return r.Old != nil &&",
		to:    "return r.Old == nil && !r.New.DeletionTimestamp.IsZero() || r.Old != nil &&",
		focus: "as if it were being deleted",
	},
	{
		name: "pods count by their labels", file: "store/pods.go",
		from: "	owner := metav1.GetControllerOfNoCopy(pod)\n	if owner == nil ||",
		to: "	return types.UID(pod.Labels[jobset.JobSetUIDKey]), true, nil\n" +
			"	owner := metav1.GetControllerOfNoCopy(pod)\n	if owner == nil ||",
		focus: "for a TrainJob that is yet to come",
	},
	{
		name: "a Job may be edited", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-jobs\n  validationActions: [Deny]",
		to:    "policyName: signalbox-jobs\n  validationActions: [Audit]",
		focus: "children of a TrainJob can't be changed", finds: "altered-child",
	},
	{
		name: "a pod's index may be edited", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-pods\n  validationActions: [Deny]",
		to:    "policyName: signalbox-pods\n  validationActions: [Audit]",
		focus: "keeps its index", finds: "exceeds-admission",
	},
	{
		name: "a pod's fields may be edited", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-pods\n  validationActions: [Deny]",
		to:    "policyName: signalbox-pods\n  validationActions: [Audit]",
		focus: "whatever its users patch",
	},
	{
		name: "a user's pod becomes a TrainJob's", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-pod-identities\n  validationActions: [Deny]",
		to:    "policyName: signalbox-pod-identities\n  validationActions: [Audit]",
		focus: "no user's pod becomes one|creates from a user's template",
	},
	{
		name: "a user's Job makes pods of a TrainJob", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-job-identities\n  validationActions: [Deny]",
		to:    "policyName: signalbox-job-identities\n  validationActions: [Audit]",
		focus: "creates from a user's template",
	},
	{
		name: "a user's JobSet makes pods of a TrainJob's Workload", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-jobset-identities\n  validationActions: [Deny]",
		to:    "policyName: signalbox-jobset-identities\n  validationActions: [Audit]",
		focus: "creates from a user's template",
	},
	{
		name: "a runtime's Jobs select pods of others", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-selectors\n  validationActions: [Deny]",
		to:    "policyName: signalbox-selectors\n  validationActions: [Audit]",
		focus: "select no others",
	},
	{
		name: "a JobSet may be kept by a finalizer", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-jobsets\n  validationActions: [Deny]",
		to:    "policyName: signalbox-jobsets\n  validationActions: [Audit]",
		focus: "kept by no user's finalizer",
	},
	{
		name: "anybody makes a TrainJob's Workload", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-workloads\n  validationActions: [Deny]",
		to:    "policyName: signalbox-workloads\n  validationActions: [Audit]",
		focus: "the one that Signalbox has created",
	},
	{
		name: "a TrainJob blocks another's deletion", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-trainjobs\n  validationActions: [Deny]",
		to:    "policyName: signalbox-trainjobs\n  validationActions: [Audit]",
		focus: "blocked by no other TrainJob",
	},
	{
		name: "users evict pods", file: "integration/evict.go",
		from:  "	if trainJob == \"\" {",
		to:    "	if true {",
		focus: "those alone who drain nodes", finds: "exceeds-admission",
	},
	{
		name: "a start isn't held against its admission", file: "admission/covers.go",
		from:  "	if wl.Status.Admission == nil {",
		to:    "	if wl.Status.Admission != nil {\n		return nil, nil\n	}\n	if wl.Status.Admission == nil {",
		focus: "not more than an admission counts", finds: "exceeds-admission",
	},
	{
		name: "any Workload fits", file: "podsets/podsets.go",
		from: "func Equal(computed, stored []kueue.PodSet) bool {",
		to: "func Equal(computed, stored []kueue.PodSet) bool {\n" +
			"	if len(computed) > 0 {\n		return true\n	}",
		focus: "a runtime that has grown since", also: "a start isn't held against its admission",
	},
	{
		name: "a started TrainJob without pods keeps its quota", file: "integration/hold.go",
		from:  "	own := o.own()\n	if own == nil || own.Time == nil",
		to:    "	return nil\n	own := o.own()\n	if own == nil || own.Time == nil",
		focus: "where a started TrainJob has no pods|where a scheduling gate", finds: "quota-for-nothing",
	},
	{
		name: "a TrainJob takes another as its owner", file: "integration/validate.go",
		from:  "	if after == nil || before != nil && before.UID == after.UID",
		to:    "	if true || after == nil || before != nil && before.UID == after.UID",
		focus: "is decided when it is created",
	},
	{
		name: "anybody's pin is believed", file: "trainer/webhook.go",
		from:  "	if !rq.Trusted && rq.AnnotationChanged(store.PinAnnotation) {",
		to:    "	if false && rq.AnnotationChanged(store.PinAnnotation) {",
		focus: "is the manager's alone",
	},
	{
		name: "side objects are taken over", file: "trainer/children.go",
		from:  "	if !metav1.IsControlledBy(there, job) {\n		return taken\n	}",
		focus: "takes over nothing of anybody's",
	},
	{
		name: "nothing limits what a TrainJob asks for", file: "overrides/limits.go",
		from: "func (l Limits) CheckSize(job *api.TrainJob) field.ErrorList {",
		to: "func (l Limits) CheckSize(job *api.TrainJob) field.ErrorList {\n" +
			"	if job != nil {\n		return nil\n	}",
		focus: "in its pods and in its size",
	},
	{
		name: "what can't be built is queued", file: "trainer/startable.go",
		from: "	if err := checkNames(job, effective.ReplicatedJobs); err != nil {",
		to: "	if effective != nil {\n		return nil\n	}\n" +
			"	if err := checkNames(job, effective.ReplicatedJobs); err != nil {",
		focus: "because its names would be too long|because a name is taken",
	},
}

func main() {
	only := flag.String("only", "", "regular expression of the holes to test; all by default")
	patience := flag.String("patience", "700ms", "how long a finding of the audit must last")
	flag.Parse()
	if err := run(regexp.MustCompile(*only), *patience); err != nil {
		fmt.Fprintln(os.Stderr, "holes:", err)
		os.Exit(1)
	}
}

func run(only *regexp.Regexp, patience string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	tree := filepath.Join(root, "bin", "holes")
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	// Includes uncommitted files.
	copied := exec.Command("bash", "-c", `mkdir -p "$1" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$1"`, "copy", tree)
	if out, err := copied.CombinedOutput(); err != nil {
		return fmt.Errorf("copying the tree: %w: %s", err, out)
	}
	defer os.RemoveAll(tree)
	failed := 0
	fmt.Println("| without the fix | specs that fail | audit finds |\n| --- | --: | --- |")
	for _, h := range holes {
		if !only.MatchString(h.name) {
			continue
		}
		says, err := h.try(root, tree, patience)
		if err != nil {
			failed++
			says = "**" + err.Error() + "** |"
		}
		fmt.Printf("| %s | %s |\n", h.name, says)
	}
	if failed > 0 {
		return fmt.Errorf("%d holes are not detected", failed)
	}
	return nil
}

var (
	ran   = regexp.MustCompile(`(\d+) Passed \| (\d+) Failed`)
	rules = regexp.MustCompile(`"((?:no-quota|exceeds-admission|quota-for-nothing|altered-child|doubled): [^"]*)"`)
)

// open removes the fix from the tree, and that of also. What it returns puts both back.
func (h hole) open(tree string) (func() error, error) {
	path := filepath.Join(tree, h.file)
	whole, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if bytes.Count(whole, []byte(h.from)) != 1 {
		return nil, fmt.Errorf("%s has changed; update the hole", h.file)
	}
	if err := os.WriteFile(path, bytes.Replace(whole, []byte(h.from), []byte(h.to), 1), 0o644); err != nil {
		return nil, err
	}
	closes := func() error { return os.WriteFile(path, whole, 0o644) }
	if h.also == "" {
		return closes, nil
	}
	i := slices.IndexFunc(holes, func(other hole) bool { return other.name == h.also })
	if i < 0 {
		return nil, errors.Join(fmt.Errorf("there is no hole %q", h.also), closes())
	}
	closesOther, err := holes[i].open(tree)
	if err != nil {
		return nil, errors.Join(err, closes())
	}
	return func() error { return errors.Join(closes(), closesOther()) }, nil
}

// try runs the specs without the fix, and returns the failures and a finding as table cells.
func (h hole) try(root, tree, patience string) (cells string, err error) {
	closes, err := h.open(tree)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, closes()) }()
	specs := exec.Command(filepath.Join(root, "bin", "cluster"), "run", "--root", tree, "--profile", "bundled", "--",
		filepath.Join(root, "bin", "e2e.test"), "-ginkgo.vv", "-ginkgo.no-color", "-ginkgo.focus="+h.focus)
	specs.Env = append(os.Environ(), "SIGNALBOX_AUDIT_PATIENCE="+patience)
	out, err := specs.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return "", err
	}
	counts := ran.FindSubmatch(out)
	if counts == nil {
		return "", fmt.Errorf("no spec ran: %s", lastOf(out))
	}
	if string(counts[2]) == "0" {
		return "", errors.New("no spec fails")
	}
	found := ""
	for _, m := range rules.FindAllSubmatch(out, -1) {
		if found == "" || strings.HasPrefix(string(m[1]), h.finds+":") && !strings.HasPrefix(found, h.finds+":") {
			found = string(m[1])
		}
	}
	if h.finds != "" && !strings.HasPrefix(found, h.finds+":") {
		return "", fmt.Errorf("audit doesn't find %s, but %q", h.finds, found)
	}
	return fmt.Sprintf("%s | %s", counts[2], strings.ReplaceAll(found, "|", "/")), nil
}

func lastOf(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " / ")
}
