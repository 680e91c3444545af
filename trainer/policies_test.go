package trainer

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/util/cert"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// sideObjects are all that starts make beside JobSets. Each needs its rights in rbac.go, and of Secrets and ConfigMaps
// its place in the chart's policies and in docs/security.md.
var sideObjects = []string{
	"ConfigMap job-flux-entrypoint", "ConfigMap job-mpi-hostfile", "ConfigMap job-tls-config",
	"PersistentVolumeClaim initializer-job", "PodGroup.scheduling.k8s.io", "PodGroup.scheduling.volcano.sh job",
	"PodGroup.scheduling.x-k8s.io job", "Secret Opaque job-flux-curve", "Secret kubernetes.io/ssh-auth job-mpi-ssh-auth",
	"Workload.scheduling.k8s.io",
}

// TestObjectsPassThePolicies starts a TrainJob twice on each runtime. The harness refuses what the chart's policies and
// roles refuse to the manager.
func TestObjectsPassThePolicies(t *testing.T) {
	restorePlugins(t)
	if err := EnableProgress(&progressOn); err != nil {
		t.Fatal(err)
	}
	made, near := map[string]bool{}, map[string]*unstructured.Unstructured{}
	for name, spec := range everyRuntime(t) {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, gangOptions(api.GangPreferred, true), withProgress)
			h.put(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: cert.GetOperatorNamespace(), Name: "certificates"},
				Data:       map[string][]byte{"ca.crt": []byte("PEM")},
			})
			h.put(&api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "any"}, Spec: *spec})
			h.put(h.pinned(h.trainJob("any", started)))
			h.reconcile("job")
			h.remove(&jobset.JobSet{}, "job")
			h.restart()
			h.reconcile("job") // replaces what is there
			if !h.get(&jobset.JobSet{}, "job") {
				t.Errorf("it isn't started again: sent %q, events %q", h.requests(), h.events())
			}
			for _, o := range h.created {
				if o.GetKind() != "JobSet" {
					made[describe(o)] = true
				}
				near[describe(o)] = o
			}
		})
	}
	if got := slices.Sorted(maps.Keys(made)); !slices.Equal(got, sideObjects) {
		t.Errorf("starts make\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(sideObjects, "\n"))
	}
	for name, o := range near {
		t.Run("near "+name, func(t *testing.T) { refusesNear(t, o) })
	}
}

// describe names an object. Names of gangs hold a hash.
func describe(o *unstructured.Unstructured) string {
	kind := o.GroupVersionKind().GroupKind().String()
	if strings.HasSuffix(kind, ".scheduling.k8s.io") {
		return kind
	}
	if o.GetKind() == "Secret" {
		kind += fmt.Sprintf(" %v", o.Object["type"])
	}
	return kind + " " + o.GetName()
}

// refusesNear holds that what is nearly an object of a TrainJob is refused to the manager, if it is a Secret or a
// ConfigMap, and that a JobSet of a TrainJob is refused to a user.
func refusesNear(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	kind := o.GetKind()
	check := func(what string, r apiRequest) {
		t.Helper()
		if err := shippedAccess().check(r); err == nil {
			t.Errorf("accepted: %s", what)
		}
	}
	if kind == "JobSet" {
		check("a user creates it", apiRequest{user: "user", object: o})
		check("a user deletes it", apiRequest{user: "user", old: o})
		return
	}
	if kind != "Secret" && kind != "ConfigMap" {
		return
	}
	others := map[string]func(*unstructured.Unstructured){
		"of no owner":      func(u *unstructured.Unstructured) { u.SetOwnerReferences(nil) },
		"of no controller": ofAnother(func(r *metav1.OwnerReference) { r.Controller = nil }),
		"of another kind":  ofAnother(func(r *metav1.OwnerReference) { r.Kind = "JobSet" }),
		"of another group": ofAnother(func(r *metav1.OwnerReference) { r.APIVersion = "example.com/v1" }),
		"of a similar group": ofAnother(func(r *metav1.OwnerReference) {
			r.APIVersion = "trainer.kubeflow.org.example.com/v1"
		}),
	}
	if kind == "Secret" {
		others["of another TrainJob"] = ofAnother(func(r *metav1.OwnerReference) { r.Name = "other" })
		others["of another name"] = func(u *unstructured.Unstructured) { u.SetName("token") }
		others["of a similar name"] = func(u *unstructured.Unstructured) { u.SetName("a" + u.GetName()) }
		others["of another type"] = func(u *unstructured.Unstructured) { u.Object["type"] = "kubernetes.io/tls" }
		others["of a service account"] = func(u *unstructured.Unstructured) {
			u.Object["type"] = string(corev1.SecretTypeServiceAccountToken)
			u.SetAnnotations(map[string]string{corev1.ServiceAccountNameKey: "admin"})
		}
		check("its update", apiRequest{user: managerUser, object: o, old: o})
	}
	for what, change := range others {
		other := o.DeepCopy()
		change(other)
		check(what+", created", apiRequest{user: managerUser, object: other})
		check(what+", deleted", apiRequest{user: managerUser, old: other})
	}
}

// ofAnother returns a function that changes the owner of an object.
func ofAnother(change func(*metav1.OwnerReference)) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		owners := u.GetOwnerReferences()
		change(&owners[0])
		u.SetOwnerReferences(owners)
	}
}

// TestManagerCreatesNoPods holds that what is tried is created by dry run alone, and that the manager has no right to
// other kinds.
func TestManagerCreatesNoPods(t *testing.T) {
	h := newHarness(t)
	for what, c := range map[string]struct {
		object client.Object
		dryRun bool
		want   bool
	}{
		"a pod, by dry run": {&corev1.Pod{}, true, true},
		"a pod":             {&corev1.Pod{}, false, false},
		"a Job, by dry run": {&batchv1.Job{}, true, true},
		"a Job":             {&batchv1.Job{}, false, false},
		"a Service":         {&corev1.Service{}, false, false},
		"a ServiceAccount":  {&corev1.ServiceAccount{}, false, false},
		"a Namespace":       {&corev1.Namespace{}, false, false},
	} {
		c.object.SetNamespace("ns")
		err := shippedAccess().check(apiRequest{user: managerUser, object: h.defaulted(c.object), dryRun: c.dryRun})
		if (err == nil) != c.want {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// withProgress configures the progress endpoint, whose CA pods mount.
func withProgress(o *options) { o.plugins = progressOn }

var progressOn = trainerconfig.Configuration{
	StatusServer:   &trainerconfig.StatusServer{Port: ptr.To[int32](1)},
	CertManagement: &trainerconfig.CertManagement{WebhookSecretName: "certificates", WebhookServiceName: "signalbox"},
}

// everyRuntime returns all that Kubeflow Trainer ships, and one for each ML policy and pod group policy that its API
// has.
func everyRuntime(t *testing.T) map[string]*trainerapi.TrainingRuntimeSpec {
	t.Helper()
	all := shippedRuntimes(t)
	policies := reflect.TypeFor[trainerapi.MLPolicySource]()
	groups := reflect.TypeFor[trainerapi.PodGroupPolicySource]()
	for i := range policies.NumField() {
		for j := range groups.NumField() + 1 {
			spec := runtimeOf(t, "{numNodes: 2}", lastingVolume)
			name := policies.Field(i).Name
			setField(&spec.MLPolicy.MLPolicySource, i)
			if j < groups.NumField() {
				spec.PodGroupPolicy = &trainerapi.PodGroupPolicy{}
				setField(&spec.PodGroupPolicy.PodGroupPolicySource, j)
				name += " " + groups.Field(j).Name
			}
			all[name] = spec
		}
	}
	return all
}

// setField sets a pointer of a struct to a zero value.
func setField(of any, n int) {
	field := reflect.ValueOf(of).Elem().Field(n)
	field.Set(reflect.New(field.Type().Elem()))
}

// shippedRuntimes returns the runtimes of Kubeflow Trainer's manifests and examples, by name.
func shippedRuntimes(t *testing.T) map[string]*trainerapi.TrainingRuntimeSpec {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/kubeflow/trainer/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*trainerapi.TrainingRuntimeSpec{}
	add := func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		for i, document := range strings.Split(string(must(os.ReadFile(path))), "\n---\n") {
			rt := &api.ClusterTrainingRuntime{}
			if err := yaml.Unmarshal([]byte(document), rt); err == nil && rt.Kind == trainerapi.ClusterTrainingRuntimeKind {
				all[fmt.Sprintf("%s %d", filepath.Base(path), i)] = &rt.Spec
			}
		}
		return nil
	}
	for _, dir := range []string{"manifests/base/runtimes", "examples"} {
		if err := filepath.WalkDir(filepath.Join(strings.TrimSpace(string(out)), dir), add); err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 8 {
		t.Fatalf("found %d runtimes", len(all))
	}
	return all
}
