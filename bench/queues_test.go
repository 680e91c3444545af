package main

import (
	"testing"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// TestQueues holds that the quota is the same however many queues share it, and that as many TrainJobs of two GPUs as
// run at a time fit, wherever they are queued in turns.
func TestQueues(t *testing.T) {
	for _, q := range []queues{1, 20, 60, 200, 220} {
		total, fits := map[kueue.ResourceFlavorReference]int64{}, map[kueue.CohortReference]int64{}
		queued, behind := map[string]*kueue.ClusterQueue{}, map[string]string{}
		for _, o := range q.objects() {
			switch o := o.(type) {
			case *kueue.ClusterQueue:
				queued[o.Name] = o
				for _, f := range o.Spec.ResourceGroups[0].Flavors {
					total[f.Name] += f.Resources[0].NominalQuota.Value()
					fits[o.Spec.CohortName] += f.Resources[0].NominalQuota.Value()
				}
			case *kueue.LocalQueue:
				behind[o.Name] = string(o.Spec.ClusterQueue)
			}
		}
		if total["a100"] != quotaOfFlavor || total["h100"] != quotaOfFlavor {
			t.Errorf("%d queues: the quota is %v", q, total)
		}
		for i := range running {
			cohort := queued[behind[q.of(i)]].Spec.CohortName
			if fits[cohort] -= 2; fits[cohort] < 0 {
				t.Errorf("%d queues: TrainJob %d doesn't fit into cohort %q", q, i, cohort)
			}
		}
		if len(behind) != int(q) || len(queued) != q.clusters() {
			t.Errorf("%d queues: %d LocalQueues, %d ClusterQueues", q, len(behind), len(queued))
		}
	}
	for _, q := range []queues{0, -1, 2, 30} {
		if q.validate() == nil {
			t.Errorf("%d queues are taken", q)
		}
	}
}
