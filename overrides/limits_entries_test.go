package overrides_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// shapesOf are specs of TrainJobs whose entry, of each shape, changes pods.
func shapesOf(pod string) map[string]string {
	template := `{template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: ` + pod + `}}}}]}}}`
	return map[string]string{
		"runtimePatches":       `{runtimePatches: [{manager: a.com/a, trainingRuntimeSpec: ` + template + `}]}`,
		"templateOverrides":    `{templateOverrides: [{manager: a.com/a, pod: [{targetJobs: [{name: node}], spec: ` + pod + `}]}]}`,
		"podTemplateOverrides": `{podTemplateOverrides: [{targetJobs: [{name: node}], spec: ` + pod + `}]}`,
		"podSpecOverrides":     `{podSpecOverrides: [` + strings.Replace(pod, "{", "{targetJobs: [{name: node}], ", 1) + `]}`,
	}
}

func TestCheckHostPaths(t *testing.T) {
	volume := func(source string) string { return `{volumes: [{name: a, ` + source + `}]}` }
	const refused = "limits.hostPaths"
	for name, c := range map[string]struct{ reason, pod, want string }{
		"a path":      {"it is the node's", volume("hostPath: {path: /}"), refused},
		"no path":     {"it may come of the runtime's volume", volume("hostPath: {}"), refused},
		"a driver":    {"the kubelet runs it", volume("flexVolume: {driver: example.com/bind}"), refused},
		"git":         {"the kubelet runs it", volume("gitRepo: {repository: a}"), refused},
		"a key ring":  {"it is a file of the node", volume("rbd: {monitors: [a], image: b, keyring: /etc/shadow}"), refused},
		"a key":       {"it is a file of the node", volume("cephfs: {monitors: [a], secretFile: /etc/shadow}"), refused},
		"of nothing":  {"a directory of its own", volume("emptyDir: {}"), ""},
		"claimed":     {"an admin has made the volume", volume("persistentVolumeClaim: {claimName: a}"), ""},
		"CSI":         {"an admin has installed its driver", volume("csi: {driver: gcsfuse.csi.storage.gke.io}"), ""},
		"a ConfigMap": {"it is in the namespace", volume("configMap: {name: hostPath}"), ""},
	} {
		for shape, spec := range shapesOf(c.pod) {
			t.Run(name+" of "+shape, func(t *testing.T) {
				job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, spec)}
				errorsAre(t, c.reason, text{limits.CheckSize(job, legacy.EveryEntry(job)).ToAggregate()}, c.want)
				allowed := limits
				allowed.HostPaths = true
				errorsAre(t, "it is allowed", text{allowed.CheckSize(job, legacy.EveryEntry(job)).ToAggregate()}, "")
			})
		}
	}
	for name, c := range map[string]struct{ security, want string }{
		"privileged":       {`{privileged: true}`, "securityContext.privileged: Invalid value: \"true\""},
		"a host's process": {`{windowsOptions: {hostProcess: true}}`, "windowsOptions.hostProcess"},
		"not privileged":   {`{privileged: false}`, ""},
		"as a user":        {`{runAsUser: 1000}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := shapesOf(`{containers: [{name: a, securityContext: ` + c.security + `}]}`)["runtimePatches"]
			job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, spec)}
			errs := limits.CheckSize(job, legacy.EveryEntry(job))
			errorsAre(t, "it has all devices of its node", text{errs.ToAggregate()}, c.want)
		})
	}
}

func TestCheckSecrets(t *testing.T) {
	without := limits
	without.NoSecrets, without.HostPaths = true, true
	for name, c := range map[string]struct{ reason, spec, want string }{
		"pulled with": {"it is a Secret", shapesOf(`{imagePullSecrets: [{name: a}]}`)["podTemplateOverrides"],
			`spec.podTemplateOverrides[0].spec.imagePullSecrets: Invalid value: "[{\"name\":\"a\"}]"`},
		"a volume": {"", shapesOf(`{volumes: [{name: a, secret: {secretName: b}}]}`)["podSpecOverrides"],
			"spec.podSpecOverrides[0].volumes[0].secret"},
		"projected": {"", shapesOf(`{volumes: [{name: a, projected: {sources: [{configMap: {name: c}}, {secret: {name: b}}]}}]}`)["runtimePatches"],
			"projected.sources[1].secret"},
		"an environment": {"", shapesOf(`{containers: [{name: a, env: [{name: b, valueFrom: {secretKeyRef: {name: c, key: d}}}]}]}`)["templateOverrides"],
			"valueFrom.secretKeyRef"},
		"the trainer's environment": {"a submitter writes it too", `{trainer: {env: [{name: b, valueFrom: {secretKeyRef: {name: c, key: d}}}]}}`,
			"spec.trainer.env[0].valueFrom.secretKeyRef"},
		"an initializer's": {"", `{initializer: {dataset: {secretRef: {name: a}}}}`, "spec.initializer.dataset.secretRef"},
		"no Secret":        {"a name is only a name", `{labels: {secret: a}, annotations: {secretName: b}, trainer: {env: [{name: SECRET, value: secret}]}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, c.spec)}
			errorsAre(t, c.reason, text{without.CheckSize(job, legacy.EveryEntry(job)).ToAggregate()}, c.want)
			errorsAre(t, "it is allowed", text{limits.CheckSize(job, legacy.EveryEntry(job)).ToAggregate()}, "")
		})
	}
}

// Every kind of volume is known to be allowed or refused, so that one that Kubernetes adds is looked at.
func TestVolumesAreKnown(t *testing.T) {
	secrets := []string{"Secret", "Projected", "AzureFile", "FlexVolume", "RBD", "CephFS", "Cinder", "ISCSI", "ScaleIO",
		"StorageOS", "CSI"}
	hosts := []string{"HostPath", "FlexVolume", "GitRepo"}
	others := []string{"EmptyDir", "GCEPersistentDisk", "AWSElasticBlockStore", "NFS", "Glusterfs", "DownwardAPI", "FC",
		"PersistentVolumeClaim", "ConfigMap", "VsphereVolume", "Quobyte", "AzureDisk", "PhotonPersistentDisk", "Flocker",
		"PortworxVolume", "Ephemeral", "Image"}
	without := limits
	without.NoSecrets = true
	for source := range reflect.TypeFor[corev1.VolumeSource]().Fields() {
		t.Run(source.Name, func(t *testing.T) {
			if !slices.Contains(slices.Concat(secrets, hosts, others), source.Name) {
				t.Error("a kind of volume that nobody has looked at: does it reach the node's files, or name a Secret?")
			}
			v := corev1.Volume{Name: "a"}
			fill(reflect.ValueOf(&v.VolumeSource).Elem().FieldByName(source.Name), 3)
			job := &api.TrainJob{}
			job.Spec.PodTemplateOverrides = []api.PodTemplateOverride{
				{Spec: &api.PodTemplateSpecOverride{Volumes: []corev1.Volume{v}}}}
			got := text{without.CheckSize(job, legacy.EveryEntry(job)).ToAggregate()}.String()
			if refused := strings.Contains(got, "may not reach the files"); refused != (slices.Contains(hosts, source.Name) ||
				slices.Contains([]string{"RBD", "CephFS"}, source.Name)) { // with a key file of the node
				t.Errorf("the node's files: got %q", got)
			}
			if source.Name != "FlexVolume" && strings.Contains(got, "name a Secret") != slices.Contains(secrets, source.Name) {
				t.Errorf("Secrets: got %q", got)
			}
		})
	}
}

// fill sets every field of a value, to a depth.
func fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() && depth > 0 {
				fill(v.Field(i), depth-1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth)
	case reflect.String:
		v.SetString("a")
	case reflect.Bool:
		v.SetBool(true)
	default:
	}
}

func TestCheckMounts(t *testing.T) {
	const runtime = `{template: {spec: {replicatedJobs: [{name: node, replicas: 1, template: {spec: {template: {spec: {
  volumes: [{name: data, hostPath: {path: /data}}, {name: own, emptyDir: {}}, {name: free, hostPath: {path: /free}}],
  containers: [{name: node, volumeMounts: [{name: data, mountPath: /data, subPath: team, readOnly: true},
    {name: free, mountPath: /free}]}]}}}}}]}}}`
	for name, c := range map[string]struct{ reason, mount, volumes, want string }{
		"written":            {"the runtime reads it only", `{name: data, mountPath: /x, subPath: team}`, "", `containers[side].volumeMounts[0]`},
		"whole":              {"the runtime mounts a part", `{name: data, mountPath: /x, readOnly: true}`, "", "limits.hostPaths"},
		"another part":       {"the same", `{name: data, mountPath: /x, subPathExpr: $(A), readOnly: true}`, "", "limits.hostPaths"},
		"alike":              {"the runtime gives as much", `{name: data, mountPath: /x, subPath: team, readOnly: true}`, "", ""},
		"what is written":    {"the runtime does", `{name: free, mountPath: /x}`, "", ""},
		"what is its own":    {"it is no file of the node", `{name: own, mountPath: /x}`, "", ""},
		"what isn't there":   {"the API server will say so", `{name: none, mountPath: /x}`, "", ""},
		"read, and writable": {"it takes less", `{name: free, mountPath: /x, readOnly: true}`, "", ""},
		"of a volume that an entry replaces": {"it is the entry's", `{name: data, mountPath: /x}`,
			"volumes: [{name: data, emptyDir: {}}], ", ""},
		"of a volume that an entry names": {"it is the runtime's", `{name: data, mountPath: /x}`,
			"volumes: [{name: data}], ", "limits.hostPaths"},
	} {
		for _, list := range []string{"containers", "initContainers"} {
			t.Run(name+" in "+list, func(t *testing.T) {
				spec := shapesOf(`{` + c.volumes + list + `: [{name: side, volumeMounts: [` + c.mount + `]}]}`)["runtimePatches"]
				job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, spec)}
				rt := must[trainerapi.TrainingRuntimeSpec](t, runtime)
				want := strings.Replace(c.want, "containers[", list+"[", 1)
				errorsAre(t, c.reason, text{limits.CheckRuntime(job, &rt, legacy.EveryEntry(job)).ToAggregate()}, want)
				allowed := limits
				allowed.HostPaths = true
				errorsAre(t, "it is allowed", text{allowed.CheckRuntime(job, &rt, legacy.EveryEntry(job)).ToAggregate()}, "")
			})
		}
	}
}
