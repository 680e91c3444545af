package trainer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store"
)

// checkNames refuses a TrainJob whose Jobs and pods would have names that are too long or not DNS labels (JobSet
// v0.12.0's webhook).
func checkNames(job *api.TrainJob, replicatedJobs []jobset.ReplicatedJob) error {
	for i := range replicatedJobs {
		rj := &replicatedJobs[i]
		last := int64(max(ptr.Deref(rj.Template.Spec.Completions, overrides.PodsPerJob(rj)), 1) - 1)
		name := fmt.Sprintf("%s-%s-%d-%d-abcde", job.Name, rj.Name, max(rj.Replicas, 1)-1, last)
		if problems := validation.IsDNS1035Label(name); len(problems) > 0 {
			return fmt.Errorf("metadata.name: %q would give pods of replicatedJob %q names such as %q, of %d characters: %s; "+
				"create the TrainJob by a shorter name",
				job.Name, rj.Name, name, len(name), strings.Join(problems, "; "))
		}
	}
	return nil
}

// checkTaken refuses a TrainJob whose JobSet or Jobs would have the names of others'. Of two TrainJobs whose Jobs would
// have the same name, the one that was created first keeps it: TrainJob "my" with replicatedJob "model-node", and
// "my-model" with "node". Each TrainJob whose name comes into question is looked up once, from the cache and without a
// copy: a name may have many dashes.
func checkTaken(
	ctx context.Context, cache client.Reader, job *api.TrainJob, replicatedJobs []jobset.ReplicatedJob,
) error {
	key := client.ObjectKeyFromObject(job)
	if js, err := store.JobSetNamed(ctx, cache, key); err != nil {
		return err
	} else if js != nil && !metav1.IsControlledBy(js, job) && js.DeletionTimestamp.IsZero() {
		return nameTaken("JobSet", key.Name)
	}
	all := rivals(job.Name, replicatedJobs)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := checkRival(ctx, cache, job, name, all[name]); err != nil {
			return err
		}
	}
	return nil
}

// rivals returns the names of the TrainJobs whose Jobs may have the name of one of a TrainJob, each with the
// ReplicatedJobs that it would have them of.
func rivals(job string, replicatedJobs []jobset.ReplicatedJob) map[string][]string {
	all := map[string][]string{}
	for i := range replicatedJobs {
		whole := job + "-" + replicatedJobs[i].Name
		for at := range whole {
			if whole[at] == '-' && at != len(job) {
				all[whole[:at]] = append(all[whole[:at]], whole[at+1:])
			}
		}
	}
	return all
}

// checkRival rejects a TrainJob whose Job has the name of one of another TrainJob with one of the ReplicatedJobs.
func checkRival(
	ctx context.Context, cache client.Reader, job *api.TrainJob, name string, replicatedJobs []string,
) error {
	key := client.ObjectKey{Namespace: job.Namespace, Name: name}
	js, err := store.JobSetNamed(ctx, cache, key)
	if err != nil {
		return err
	}
	what, theirs := "JobSet", []string(nil)
	if js != nil { // it has the Jobs that the other TrainJob will have
		theirs = namesOf(js.Spec.ReplicatedJobs)
	} else {
		var other api.TrainJob
		if err := cache.Get(ctx, key, &other, client.UnsafeDisableDeepCopy); err != nil {
			return client.IgnoreNotFound(err)
		}
		if !precedes(&other, job) {
			return nil
		}
		if theirs, err = stepsOf(ctx, cache, &other); err != nil {
			return err
		}
		what = "TrainJob"
	}
	for _, rj := range replicatedJobs {
		if slices.Contains(theirs, rj) {
			return nameTaken("Job of "+what+" "+name, name+"-"+rj+"-0")
		}
	}
	return nil
}

// precedes reports whether another TrainJob keeps a name that both need: it hasn't ended and was created before.
func precedes(other, job *api.TrainJob) bool {
	later := job.CreationTimestamp.Before(&other.CreationTimestamp) ||
		job.CreationTimestamp.Equal(&other.CreationTimestamp) && job.UID < other.UID
	return !later && !trainjobutil.IsTrainJobFinished(other.Upstream())
}

// stepsOf returns the ReplicatedJobs of a TrainJob without a JobSet: those that its last admission was for, or else
// those of its runtime. Its pinned runtime isn't unfolded: whoever has many TrainJobs would have each cost that of all.
func stepsOf(ctx context.Context, cache client.Reader, job *api.TrainJob) ([]string, error) {
	if own := dialect.Bundled.Own(job); own != nil {
		return overrides.StepsOf(own), nil
	}
	if _, pinned := job.Annotations[store.PinAnnotation]; pinned {
		return nil, nil // Kueue doesn't manage it, or it would have the entry; and it doesn't run
	}
	replicatedJobs, err := store.LiveSteps(ctx, cache, job)
	return namesOf(replicatedJobs), err
}

func namesOf(replicatedJobs []jobset.ReplicatedJob) []string {
	names := make([]string, len(replicatedJobs))
	for i := range replicatedJobs {
		names[i] = replicatedJobs[i].Name
	}
	return names
}
