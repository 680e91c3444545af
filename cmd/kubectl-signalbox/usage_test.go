package main

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// usageOfTwoDays is what two teams have used, of which job "first" is in the records for its first hour.
const usageOfTwoDays = `apiVersion: usage.signalbox.dev/v1alpha1
kind: QuotaUsage
metadata: {name: queue-2026-11-23, namespace: team}
queue: queue
day: "2026-11-23"
rows:
- {team: vision, user: ann, clusterQueue: cq, flavor: a100, resource: nvidia.com/gpu, useful: 7200000, lost: 3600000}
- {team: vision, user: bob, clusterQueue: cq, flavor: h100, resource: nvidia.com/gpu, unknown: 1800000}
- {team: speech, user: bob, clusterQueue: cq, flavor: a100, resource: cpu, idle: 500}
---
apiVersion: usage.signalbox.dev/v1alpha1
kind: QuotaUsage
metadata: {name: queue-2026-11-24, namespace: team}
queue: queue
day: "2026-11-24"
rows: [{team: vision, user: ann, clusterQueue: cq, flavor: a100, resource: nvidia.com/gpu, useful: 3600000}]
recent: [{run: "wl-first/2026-11-24T10:00:01Z", until: "2026-11-24T11:00:01.000000Z"}]
---
apiVersion: usage.signalbox.dev/v1alpha1
kind: QuotaUsage
metadata: {name: queue-2026-11-24, namespace: another}
queue: queue
day: "2026-11-24"
rows: [{user: eve, clusterQueue: cq, flavor: a100, resource: nvidia.com/gpu, useful: 1000}]
`

// TestUsage holds what is added up, and how it is shown. Job "first" has held eight GPUs since 10:00:01.
func TestUsage(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		o      usageOptions
		want   string
	}{
		"by queue and team": {"in hours, with what runs now", usageOptions{since: "7d", by: []string{"queue", "team"}},
			`QUEUE   TEAM     RESOURCE         USEFUL   LOST   IDLE   UNKNOWN   TOTAL
queue   <none>   nvidia.com/gpu   0.0      0.0    8.0    0.0       8.0
queue   speech   cpu              0.0      0.0    0.0    0.0       0.0
queue   vision   nvidia.com/gpu   3.0      1.0    0.0    0.5       4.5
`},
		"as CSV": {"in seconds", usageOptions{since: "36h", by: []string{"user", "flavor"}, output: "csv"},
			`user,flavor,resource,useful,lost,idle,unknown,total
,a100,nvidia.com/gpu,0.000,0.000,28800.000,0.000,28800.000
ann,a100,nvidia.com/gpu,10800.000,3600.000,0.000,0.000,14400.000
bob,a100,cpu,0.000,0.000,0.500,0.000,0.500
bob,h100,nvidia.com/gpu,0.000,0.000,0.000,1800.000,1800.000
`},
		"of all, as JSON": {"with the namespace", usageOptions{all: true, since: "0d", by: []string{"queue", "day"},
			output: "json"}, `[
    {
        "day": "2026-11-24",
        "idle": 0,
        "lost": 0,
        "namespace": "another",
        "queue": "queue",
        "resource": "nvidia.com/gpu",
        "total": 1,
        "unknown": 0,
        "useful": 1
    },
    {
        "day": "2026-11-24",
        "idle": 28800,
        "lost": 0,
        "namespace": "team",
        "queue": "queue",
        "resource": "nvidia.com/gpu",
        "total": 32400,
        "unknown": 0,
        "useful": 3600
    }
]
`},
		"of all namespaces": {"one queue's name may be in each", usageOptions{all: true, since: "0d", by: []string{"queue"}},
			`NAMESPACE   QUEUE   RESOURCE         USEFUL   LOST   IDLE   UNKNOWN   TOTAL
another     queue   nvidia.com/gpu   0.0      0.0    0.0    0.0       0.0
team        queue   nvidia.com/gpu   1.0      0.0    8.0    0.0       9.0
`},
		"by nothing": {"the resource is always there", usageOptions{since: "0s"},
			`RESOURCE         USEFUL   LOST   IDLE   UNKNOWN   TOTAL
nvidia.com/gpu   1.0      0.0    8.0    0.0       9.0
`},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, interceptor.Funcs{}, strings.Split(usageOfTwoDays, "\n---\n")...)
			s := &session{client: tr.client, namespace: "team",
				streams: genericiooptions.IOStreams{Out: &tr.out, ErrOut: &tr.errs}}
			now := time.Date(2026, 11, 24, 12, 0, 1, 0, time.UTC)
			if err := showUsage(t.Context(), s, c.o, now); err != nil {
				t.Fatal(err)
			}
			if got := tr.out.String(); got != c.want {
				t.Errorf("%s: got\n%s\nwant\n%s", c.reason, got, c.want)
			}
		})
	}
}

// TestUsageRefused holds that what can't be shown is said, with what to do.
func TestUsageRefused(t *testing.T) {
	for name, c := range map[string]struct {
		funcs interceptor.Funcs
		args  []string
		err   string
		says  string
	}{
		"a bad time":        {args: []string{"--since", "week"}, err: `--since is "week"; it must be a number of days`},
		"a negative time":   {args: []string{"--since=-1d"}, err: "--since"},
		"a negative one":    {args: []string{"--since=-1h"}, err: "--since"},
		"a bad dimension":   {args: []string{"--by", "node"}, err: `--by has "node"; it can have each of queue, team, user`},
		"one twice":         {args: []string{"--by", "team,team"}, err: "once"},
		"a bad format":      {args: []string{"-o", "yaml"}, err: `--output is "yaml"; it can be table, csv, json`},
		"no records":        {args: []string{"--since", "100000d"}, says: "Nothing was recorded since 2025-"},
		"may not read":      {funcs: forbids("QuotaUsage"), err: "in namespace team; whoever may view the namespace may"},
		"may not read all":  {funcs: forbids("QuotaUsage"), args: []string{"-A"}, err: "of all namespaces; name one by -n"},
		"nothing answers":   {funcs: broken(), err: "listing what was used: connection refused"},
		"no Workloads seen": {funcs: forbids("Workload"), says: "list workloads.kueue.x-k8s.io"},
		"isn't recorded":    {funcs: unserved("QuotaUsage"), err: "its admin can set usage.enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, c.funcs)
			if name == "no records" {
				tr = newTrial(t, forbids("Workload"))
			}
			err := tr.try(append([]string{"usage"}, c.args...)...)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if !strings.Contains(tr.errs.String(), c.says) {
				t.Errorf("got %q, want %q", tr.errs.String(), c.says)
			}
		})
	}
}

// unserved has the cluster not know a kind.
func unserved(kind string) interceptor.Funcs {
	return interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption,
	) error {
		if gvk, err := c.GroupVersionKindFor(list); err == nil && gvk.Kind == kind+"List" {
			return &apimeta.NoKindMatchError{GroupKind: gvk.GroupKind()}
		}
		return c.List(ctx, list, opts...)
	}}
}

// TestUsageNames holds that whoever chooses a name can write neither into other columns, nor to the terminal, nor a
// formula into a spreadsheet.
func TestUsageNames(t *testing.T) {
	for format, want := range map[string]string{
		"csv": "user,resource,useful,lost,idle,unknown,total\n'=HYPERLINK(1),r,1.000,0.000,0.000,0.000,1.000\n" +
			"eve\ufffdadmin\ufffd[2J\ufffd,r,1.000,0.000,0.000,0.000,1.000\n",
		"table": "USER                  RESOURCE   USEFUL   LOST   IDLE   UNKNOWN   TOTAL\n" +
			"=HYPERLINK(1)         r          0.0      0.0    0.0    0.0       0.0\n" +
			"eve\ufffdadmin\ufffd[2J\ufffd       r          0.0      0.0    0.0    0.0       0.0\n",
	} {
		tr := newTrial(t, interceptor.Funcs{})
		s := &session{streams: genericiooptions.IOStreams{Out: &tr.out, ErrOut: &tr.errs}}
		sum := newSums(usageOptions{by: []string{"user"}}, "2026-11-24")
		for _, user := range []string{"=HYPERLINK(1)", "eve\x00admin\x1b[2J\n"} {
			sum.add("team", "queue", "2026-11-24",
				[]usageapi.Row{{User: user, Resource: "r", Held: usageapi.Held{Useful: 1000}}})
		}
		if err := sum.print(s, format); err != nil {
			t.Fatal(err)
		}
		if got := tr.out.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("%s: got\n%q\nwant\n%q", format, got, want)
		}
	}
}

// TestUsageElsewhere holds that what waits for another cluster, or runs there, isn't shown: it isn't recorded either.
func TestUsageElsewhere(t *testing.T) {
	wl := kueue.Workload{Status: kueue.WorkloadStatus{
		NominatedClusterNames: []string{"worker"},
		Conditions: []metav1.Condition{{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC))}},
		Admission: &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{{
			Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{"cpu": "a"},
			ResourceUsage: corev1.ResourceList{"cpu": resource.MustParse("1")}}}},
	}}
	wl.OwnerReferences = []metav1.OwnerReference{{Kind: "TrainJob", Name: "job", Controller: ptr.To(true)}}
	sum := newSums(usageOptions{}, "2026-11-24")
	sum.addRunning([]kueue.Workload{wl}, nil, time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC))
	if len(sum.of) > 0 {
		t.Errorf("got %v", sum.of)
	}
}
