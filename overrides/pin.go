package overrides

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// PinAnnotation holds the runtime that a TrainJob of the bundled Trainer was first started on: its spec as JSON,
// compressed by gzip, in base64. It is written together with the start, so that a later edit of the runtime, or its
// deletion, changes nothing for the TrainJob.
const PinAnnotation = "signalbox.dev/runtime"

// maxPin bounds what a pin may unfold to, in bytes; more than an object can hold is not a pin that we wrote.
const maxPin = 8 << 20

// packers are kept, because each is most of a megabyte.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}

// Pin returns the annotation's value for a runtime.
func Pin(runtime *trainerapi.TrainingRuntimeSpec) (string, error) {
	data, err := json.Marshal(runtime)
	if err != nil {
		return "", fmt.Errorf("pinning the runtime: %w", err)
	}
	var out bytes.Buffer
	w := packers.Get().(*gzip.Writer)
	defer packers.Put(w)
	w.Reset(&out)
	if _, err := w.Write(data); err != nil {
		return "", fmt.Errorf("pinning the runtime: %w", err)
	}
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("pinning the runtime: %w", err)
	}
	return base64.StdEncoding.EncodeToString(out.Bytes()), nil
}

// Pinned returns the runtime that the TrainJob is pinned to, nil where it has never started.
func Pinned(job *api.TrainJob) (*trainerapi.TrainingRuntimeSpec, error) {
	value, found := job.Annotations[PinAnnotation]
	if !found {
		return nil, nil
	}
	runtime, err := unpin(value)
	if err != nil {
		return nil, fmt.Errorf("metadata.annotations[%s]: %w; it was not written by Signalbox: delete the TrainJob and create it without the annotation", PinAnnotation, err)
	}
	return runtime, nil
}

func unpin(value string) (*trainerapi.TrainingRuntimeSpec, error) {
	packed, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, maxPin+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxPin {
		return nil, fmt.Errorf("it unfolds to more than %d bytes", maxPin)
	}
	runtime := &trainerapi.TrainingRuntimeSpec{}
	return runtime, json.Unmarshal(data, runtime)
}

// Where Kubeflow Trainer (v2.3.0, KEP-2599) keeps the runtime that it has pinned for a TrainJob.
const (
	SnapshotSuffix = "-runtime-snapshot"
	snapshotKey    = "runtime"
)

// FromSnapshot reads the runtime out of Kubeflow Trainer's snapshot; nil where it is of an earlier TrainJob of that
// name, which the garbage collector is about to take, or of another runtime.
func FromSnapshot(job *api.TrainJob, object *corev1.ConfigMap) (*trainerapi.TrainingRuntimeSpec, error) {
	if owner := metav1.GetControllerOf(object); owner == nil || owner.UID != job.UID {
		return nil, nil
	}
	var pinned struct {
		Kind     string                         `json:"kind"`
		Metadata metav1.ObjectMeta              `json:"metadata"`
		Spec     trainerapi.TrainingRuntimeSpec `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(object.Data[snapshotKey]), &pinned); err != nil {
		return nil, fmt.Errorf("Trainer's runtime snapshot %s/%s, key %q: %w", object.Namespace, object.Name, snapshotKey, err)
	}
	if ref := job.Spec.RuntimeRef; pinned.Metadata.Name != ref.Name || ref.Kind != nil && pinned.Kind != *ref.Kind {
		return nil, nil
	}
	return &pinned.Spec, nil
}

// SeenByTrainer tells whether Kubeflow Trainer, or ours, has made a JobSet of the TrainJob: only then may there be a
// snapshot that Trainer has made. Anybody who may write ConfigMaps can make one that looks so; nobody but a controller
// writes status.
func SeenByTrainer(job *api.TrainJob) bool { return len(job.Status.JobsStatus) > 0 }

// Outlived returns the initializers (the ReplicatedJobs that others wait to complete) whose work is done and outlives
// the JobSet, by name: all their Jobs have succeeded, and every volume that they can write to lasts. They need not run
// again when the TrainJob does.
//
// Where the rest could not stand without them, all are run again: JobSet refuses a shared claim that nobody mounts, and a
// success policy that names only them would name all.
func Outlived(spec *jobset.JobSetSpec, statuses []trainerapi.JobStatus) map[string]bool {
	awaited := map[string]bool{}
	for _, rj := range spec.ReplicatedJobs {
		for _, d := range rj.DependsOn {
			if d.Status == jobset.DependencyComplete {
				awaited[d.Name] = true
			}
		}
	}
	done := map[string]bool{}
	for i := range spec.ReplicatedJobs {
		rj := &spec.ReplicatedJobs[i]
		for _, status := range statuses {
			if status.Name == rj.Name && awaited[rj.Name] && ptr.Deref(status.Succeeded, 0) >= max(rj.Replicas, 1) && lasting(rj, spec.VolumeClaimPolicies) {
				done[rj.Name] = true
			}
		}
	}
	if !standsWithout(spec, done) {
		return nil
	}
	return done
}

func standsWithout(spec *jobset.JobSetSpec, done map[string]bool) bool {
	if len(done) == len(spec.ReplicatedJobs) {
		return false
	}
	if p := spec.SuccessPolicy; p != nil && len(p.TargetReplicatedJobs) > 0 && !slices.ContainsFunc(p.TargetReplicatedJobs, func(name string) bool { return !done[name] }) {
		return false
	}
	mounted := map[string]bool{}
	for _, rj := range spec.ReplicatedJobs {
		for _, c := range rj.Template.Spec.Template.Spec.Containers {
			for _, m := range c.VolumeMounts {
				mounted[m.Name] = mounted[m.Name] || !done[rj.Name]
			}
		}
	}
	for _, policy := range spec.VolumeClaimPolicies {
		for _, claim := range policy.Templates {
			if !mounted[claim.Name] {
				return false
			}
		}
	}
	return true
}

// lasting tells whether a ReplicatedJob writes to volumes at all, and all of them outlive its JobSet.
func lasting(rj *jobset.ReplicatedJob, claims []jobset.VolumeClaimPolicy) bool {
	kept := map[string]bool{} // by the name of the claim's template; whether the claim stays
	for _, policy := range claims {
		for _, template := range policy.Templates {
			p := policy.RetentionPolicy
			kept[template.Name] = p != nil && ptr.Deref(p.WhenDeleted, jobset.RetentionPolicyDelete) == jobset.RetentionPolicyRetain
		}
	}
	pod := &rj.Template.Spec.Template.Spec
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
	}
	writes := false
	for _, c := range pod.Containers {
		for _, mount := range c.VolumeMounts {
			if mount.ReadOnly {
				continue
			}
			if stays, ofClaim := kept[mount.Name]; ofClaim {
				if !stays {
					return false
				}
				writes = true
				continue
			}
			v, found := volumes[mount.Name]
			switch {
			case !found:
				return false
			case v.PersistentVolumeClaim != nil || v.NFS != nil:
				writes = true
			case v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil:
				// nobody writes to them
			default:
				return false
			}
		}
	}
	return writes
}
