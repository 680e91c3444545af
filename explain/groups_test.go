package explain

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// TestGroups holds that the pods have to fit into every resource group: that there is CPU doesn't make GPUs enough.
func TestGroups(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Facts)
		code   Code
		text   string
	}{
		"both have room": {func(*Facts) {}, CodeBehind, "considered before it"},
		"GPUs are used": {func(f *Facts) { holds(f, "other", "queue", 6, 0) }, CodeShort,
			"6 of nvidia.com/gpu are missing in flavor a100"},
		"too many GPUs": {func(f *Facts) { f.Workload.Spec.PodSets[0].Count = 3 }, CodeTooLarge,
			"asks for 24 of nvidia.com/gpu"},
		"no such GPUs": {func(f *Facts) {
			f.Workload.Spec.PodSets[0].Template.Spec.NodeSelector = map[string]string{"gpu": "h100"}
		}, CodeNoFlavor, "no flavor suits its pods"},
		"too much CPU": {func(f *Facts) {
			quantity := f.Workload.Spec.PodSets[0].Template.Spec.Containers[0].Resources.Requests
			quantity[corev1.ResourceCPU] = resource.MustParse("200")
			holds(f, "other", "queue", 6, 0)
		}, CodeTooLarge, "asks for 200 of cpu"},
		"more memory than GPUs": {func(f *Facts) {
			quantity := f.Workload.Spec.PodSets[0].Template.Spec.Containers[0].Resources.Requests
			quantity[corev1.ResourceMemory] = resource.MustParse("101Gi")
			quantity[corev1.ResourceCPU] = resource.MustParse("300")
		}, CodeTooLarge, "asks for 300 of cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			e := Explain(facts(func(f *Facts) {
				cq := queueOf(f, "queue")
				cq.Spec.ResourceGroups = append([]kueue.ResourceGroup{{
					CoveredResources: []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory},
					Flavors: []kueue.FlavorQuotas{{Name: "cpu", Resources: []kueue.ResourceQuota{
						{Name: corev1.ResourceCPU, NominalQuota: resource.MustParse("100")},
						{Name: corev1.ResourceMemory, NominalQuota: resource.MustParse("100Gi")},
					}}},
				}}, cq.Spec.ResourceGroups...)
				requests := f.Workload.Spec.PodSets[0].Template.Spec.Containers[0].Resources.Requests
				requests[corev1.ResourceCPU] = resource.MustParse("8")
				c.change(f)
			}))
			if e.Cause.Code != c.code || !strings.Contains(e.Cause.Text, c.text) {
				t.Errorf("got %s: %s, want %s: …%s…", e.Cause.Code, e.Cause.Text, c.code, c.text)
			}
		})
	}
}
