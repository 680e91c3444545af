package main

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestVerbs(t *testing.T) {
	cases := map[string]struct {
		reason string
		funcs  interceptor.Funcs
		more   string
		args   []string
		out    []string // parts of what is written to either stream
		err    string
	}{
		"list": {
			reason: "with places",
			args:   []string{"list"},
			out:    []string{"NAME", "first", "Running", "second", "1 of 1", "a100"},
		},
		"list wide": {reason: "with the cause", args: []string{"list", "-A", "-o", "wide"},
			out: []string{"NAMESPACE", "CLUSTERQUEUE", "QuotaUsed"}},
		"list wide, stalled": {reason: "with what was saved", more: stalledJob, args: []string{"list", "-o", "wide"},
			out: []string{"CAUSE  ", "SAVED", "stalled   Stalled", "Stalled     step 120 ("}},
		"list as JSON, saved": {reason: "for scripts", more: stalledJob, args: []string{"list", "-o", "json"},
			out: []string{`"state": "Stalled"`, `"cause": "Stalled"`, `"checkpoint": {`, `"value": "step 120"`}},
		"explain a stalled one": {reason: "with what helps", more: stalledJob, args: []string{"explain", "stalled"},
			out: []string{"TrainJob team/stalled is Stalled, for ", "  Stalled (NoReport): it has reported nothing; its last " +
				"checkpoint, step 120, was saved ", "  - kubectl signalbox logs stalled shows", "raise annotation"}},
		"list selected": {
			reason: "by label",
			args:   []string{"list", "-l", "team=vision", "-o", "name"},
			out:    []string{"trainjob.trainer.kubeflow.org/second\n"},
		},
		"list none": {
			reason: "said so",
			args:   []string{"list", "-l", "team=none"},
			out:    []string{"No TrainJobs found."},
		},
		"list as YAML": {
			reason: "for scripts",
			args:   []string{"list", "-o", "yaml"},
			out:    []string{"- age:", "place: 1"},
		},
		"a bad selector": {reason: "named", args: []string{"list", "-l", "=="}, err: "--selector"},
		"a bad format": {
			reason: "named, with what there is",
			args:   []string{"list", "-o", "xml"},
			err:    `--output is "xml"; it can be wide, json`,
		},
		"list, no answer": {
			reason: "named",
			funcs:  broken(),
			args:   []string{"list"},
			err:    "listing TrainJobs: connection refused",
		},
		"top": {reason: "by queue and team", args: []string{"top"},
			out: []string{"CLUSTERQUEUE", "cq", "NAMESPACE", "team"}},
		"top as JSON": {
			reason: "for scripts",
			args:   []string{"top", "-o", "json"},
			out:    []string{`"waiting": "8"`, `"used": "8"`},
		},
		"top, forbidden": {reason: "the right is named", funcs: forbids("ClusterQueue"), args: []string{"top"},
			err: "the right to list clusterqueues"},
		"explain": {reason: "cause, numbers, timeline", args: []string{"explain", "second"}, out: []string{
			"TrainJob team/second is Queued", "QuotaUsed: 8 of nvidia.com/gpu are missing", "held by team/first (8)",
			"place 1 of 1", "What to do:", "FLAVOR", "What has happened:", "submitted",
		}},
		"explain one that runs after others": {reason: "with those that these wait for", more: chain,
			args: []string{"explain", "third"}, out: []string{
				"RunsAfterOthers: it runs after chained has succeeded (it is Suspended), and after nobody has ended " +
					"(it is Missing)",
				"Runs after:\n  chained   has succeeded   Suspended\n    first   has ended       Running\n" +
					"  nobody    has ended       Missing\n",
			}},
		"explain as JSON": {
			reason: "for scripts",
			args:   []string{"explain", "second", "-o", "json"},
			out:    []string{`"code": "QuotaUsed"`},
		},
		"explain, running": {
			reason: "where",
			args:   []string{"explain", "first"},
			out:    []string{"Running: it runs on a100"},
		},
		"explain, few rights": {
			reason: "Kueue's message, and which rights would show more",
			funcs: forbids(
				"ClusterQueue",
				"Workload elsewhere",
				"LocalQueue elsewhere",
				"Namespace",
				"ResourceFlavor",
				"AdmissionCheck",
			),
			args: []string{"explain", "second"},
			out:  []string{"8 more needed", "You lack rights that would show more: list clusterqueues.kueue.x-k8s.io"},
		},
		"explain nobody": {
			reason: "named",
			args:   []string{"explain", "nobody"},
			err:    "reading TrainJob nobody in namespace team",
		},
		"simulate": {reason: "after whose end, and when", args: []string{"simulate", "second", "--until"}, out: []string{
			"team/second waits on a100 for nvidia.com/gpu until team/first has ended", "Kueue says: couldn't assign",
			"It starts at about",
		}},
		"simulate less": {
			reason: "it still waits",
			args:   []string{"simulate", "second", "--set", "nodes=1"},
			out:    []string{"waits"},
		},
		"simulate more": {reason: "it never fits", args: []string{"simulate", "second", "--set", "nodes=3", "-o", "yaml"},
			out: []string{"verdict: Never", "set: nodes=2"}},
		"simulate elsewhere": {reason: "another queue has room", more: spot,
			args: []string{"simulate", "second", "--set", "queue=spot"}, out: []string{"would be admitted now on spot"}},
		"simulate with a change": {reason: "what helps", more: spot, args: []string{"simulate", "second"},
			out: []string{"It would be admitted with:", "queue=spot"}},
		"simulate a higher priority": {reason: "the class is read", more: urgent,
			args: []string{"simulate", "second", "--set", "priority=urgent"}, out: []string{"waits"}},
		"simulate the running one": {
			reason: "it has quota",
			args:   []string{"simulate", "first"},
			out:    []string{"has quota already"},
		},
		"simulate with GPUs": {
			reason: "they fit",
			more:   spot,
			args: []string{
				"simulate",
				"second",
				"--set",
				"resource.nvidia.com/gpu=1",
				"--set",
				"queue=spot",
			},
			out: []string{"admitted now"},
		},
		"set: no value": {
			reason: "named",
			args:   []string{"simulate", "second", "--set", "nodes"},
			err:    "--set nodes: it must be KEY=VALUE",
		},
		"set: no number": {
			reason: "named",
			args:   []string{"simulate", "second", "--set", "nodes=x"},
			err:    "whole number",
		},
		"set: no amount": {
			reason: "named",
			args:   []string{"simulate", "second", "--set", "resource.cpu=x"},
			err:    "--set resource.cpu=x",
		},
		"set: unknown": {
			reason: "named, with what there is",
			args:   []string{"simulate", "second", "--set", "a=b"},
			err:    "the keys are nodes",
		},
		"set: no class": {
			reason: "named",
			args:   []string{"simulate", "second", "--set", "priority=none"},
			err:    "WorkloadPriorityClass none",
		},
		"set: negative": {
			reason: "refused with path and value",
			args:   []string{"simulate", "second", "--set", "resource.cpu=-1"},
			err:    `--set resource.cpu=-1: [spec.trainer.resourcesPerNode.requests[cpu]: Invalid value: "-1": must be 0 or more`,
		},
		"set: half a GPU": {
			reason: "refused with path and value",
			args:   []string{"simulate", "second", "--set", "resource.nvidia.com/gpu=500m"},
			err:    `spec.trainer.resourcesPerNode.requests[nvidia.com/gpu]: Invalid value: "500m": must be a whole number`,
		},
		"set: no resource": {
			reason: "refused with path and value",
			args:   []string{"simulate", "second", "--set", "resource.gpus=1"},
			err:    `spec.trainer.resourcesPerNode.requests[gpus]: Invalid value: "gpus": is no resource of a container`,
		},
		"set: no queue's name": {
			reason: "refused with path and value",
			args:   []string{"simulate", "second", "--set", "queue=Team_A"},
			err:    `metadata.labels[kueue.x-k8s.io/queue-name]: Invalid value: "Team_A"`,
		},
		"simulate one that runs after others": {reason: "Kueue doesn't consider it", more: chain,
			args: []string{"simulate", "third"}, out: []string{
				"team/third is Blocked (it runs after chained, nobody). Kueue considers it when that has changed.",
			}},
		"simulate a blocked one": {reason: "Kueue doesn't consider it", more: blockedJob,
			args: []string{"simulate", "blocked"}, out: []string{
				"team/blocked is Blocked (RuntimeNotFound: there is no runtime x). Kueue considers it when that has changed.",
			}},
		"simulate a started one that is blocked": {reason: "it has quota", more: podlessJob,
			args: []string{"simulate", "podless"}, out: []string{"team/podless has quota already on a100 for nvidia.com/gpu"}},
		"simulate a blocked one as JSON": {reason: "for scripts", more: blockedJob,
			args: []string{"simulate", "blocked", "-o", "json"}, out: []string{`"verdict": "Blocked"`}},
		"simulate a blocked one with a change": {reason: "the change may be what it needs", more: blockedJob,
			args: []string{"simulate", "blocked", "--set", "resource.nvidia.com/gpu=2"}, out: []string{"team/blocked waits"}},
		"simulate nothing": {
			reason: "a name is needed",
			args:   []string{"simulate"},
			err:    "name either a TrainJob or a file",
		},
		"simulate, forbidden": {
			reason: "the right is named",
			funcs:  forbids("ClusterQueue"),
			args:   []string{"simulate", "second"},
			err:    "you may not list clusterqueues",
		},
		"wait": {
			reason: "it runs already",
			args:   []string{"wait", "first"},
			out:    []string{"TrainJob first is Running\n"},
		},
		"wait too long": {reason: "the exit code says so", args: []string{"wait", "second", "--timeout", "50ms"},
			out: []string{"kubectl signalbox explain second says why"}, err: "exit code 2"},
		"wait for what isn't": {
			reason: "named, with what there is",
			args:   []string{"wait", "first", "--for", "lunch"},
			err:    `--for is "lunch"`,
		},
		"wait for nobody":       {reason: "named", args: []string{"wait", "nobody"}, err: "there is no TrainJob nobody"},
		"resume nobody stopped": {reason: "said so", args: []string{"resume", "first"}, out: []string{"was not stopped"}},
		"doctor": {reason: "there are no webhooks", args: []string{"doctor"}, out: []string{
			"ERROR: webhooks: there is no webhook of Signalbox",
			"WARNING: ResourceFlavor a100: no node has its labels gpu=a100",
			"Checked: versions,",
		}, err: "exit code 1"},
		"doctor as JSON": {
			reason: "for CI",
			args:   []string{"doctor", "-o", "json"},
			out:    []string{`"severity": "error"`},
			err:    "exit code 1",
		},
		"version": {
			reason: "of all",
			args:   []string{"version"},
			out:    []string{"kubectl-signalbox", "Kubernetes"},
		},
		"version as JSON": {
			reason: "for scripts",
			args:   []string{"version", "-o", "json", "--client"},
			out:    []string{`"client":`},
		},
		"logs, no pods": {
			reason: "said so",
			args:   []string{"logs", "second"},
			out:    []string{"TrainJob second has no pods"},
		},
		"logs": {reason: "with the rank", more: twoPods, args: []string{"logs", "first", "--tail", "3"},
			out: []string{"[node-0] fake logs", "[node-1-0] fake logs"}},
		"logs of a rank": {
			reason: "alone",
			more:   twoPods,
			args:   []string{"logs", "first", "--rank", "node-0"},
			out:    []string{"[node-0] fake logs\n"},
		},
		"logs of nobody": {reason: "named", args: []string{"logs", "nobody"}, err: "reading TrainJob nobody"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var more []string
			if c.more != "" {
				more = append(more, c.more)
			}
			tr := newTrial(t, c.funcs, more...)
			err := tr.try(c.args...)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("%s: got %v, want %q; %s%s", c.reason, err, c.err, tr.out.String(), tr.errs.String())
			}
			for _, part := range c.out {
				if !strings.Contains(tr.out.String()+tr.errs.String(), part) {
					t.Errorf("%s: got\n%s%s\nwant %q", c.reason, tr.out.String(), tr.errs.String(), part)
				}
			}
		})
	}
}
