package overrides

import (
	"encoding/json"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestMigrationOperations(t *testing.T) {
	list := []api.PodTemplateOverride{{TargetJobs: []api.TargetJob{{Name: "node"}}}}
	patch := &trainerapi.RuntimePatch{Manager: ConvertedManager}
	const had = "{podTemplateOverrides: [{targetJobs: [{name: old}]}]}"
	const removed = "remove /metadata/annotations/signalbox.dev~1overrides"
	const replaced = "replace /metadata/annotations/signalbox.dev~1overrides"
	const elements = ` [{"targetJobs":[{"name":"node"}]}]`
	const entry = `{"manager":"` + ConvertedManager + `"}`
	cases := map[string]struct {
		reason, spec string
		dialect      Dialect
		migration    Migration
		want         string
	}{
		"nothing to say": {"the Record goes", "{}", Bundled, Migration{}, removed},
		"an entry": {"it is the first", "{}", Bundled, Migration{Patch: patch},
			removed + "; add /spec/runtimePatches [" + entry + "]"},
		"an entry before others": {"it is the first", "{runtimePatches: [{manager: a.com/a}]}", Bundled,
			Migration{Patch: patch}, removed + "; add /spec/runtimePatches/0 " + entry},
		"a list that stays": {"what the users have edited counts", had, Bundled, Migration{List: list},
			removed + "; replace /spec/podTemplateOverrides" + elements},
		"a list that goes": {"it is in the entry", had, Bundled, Migration{Patch: patch},
			removed + "; remove /spec/podTemplateOverrides; add /spec/runtimePatches [" + entry + "]"},
		"Kubeflow Trainer v2.3": {"its CRD has no such list", had, Kubeflow23, Migration{Patch: patch},
			removed + "; add /spec/runtimePatches [" + entry + "]"},
		"to a list": {"a Record of the new list takes its place", "{}", Kubeflow21, Migration{List: list},
			"add /spec/podTemplateOverrides" + elements + "; " + replaced},
		"to an empty list": {"there is nothing to say in it", "{}", Kubeflow21, Migration{}, replaced},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.migration.dialect = c.dialect
			operations, err := c.migration.Operations(&api.TrainJob{Spec: must[api.TrainJobSpec](t, c.spec)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range operations {
				text := o.Op + " " + o.Path
				if value, isRecord := o.Value.(string); isRecord {
					job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{RecordAnnotation: value}}}
					if is, err := RecordOf(job); err != nil || is == nil || is.Field != c.dialect.Field() {
						t.Errorf("%s: got %+v, %v", c.reason, is, err)
					}
				} else if o.Value != nil {
					value, err := json.Marshal(o.Value)
					if err != nil {
						t.Fatal(err)
					}
					text += " " + string(value)
				}
				got = append(got, text)
			}
			if text := strings.Join(got, "; "); text != c.want {
				t.Errorf("%s: got\n%s\nwant\n%s", c.reason, text, c.want)
			}
		})
	}
}
