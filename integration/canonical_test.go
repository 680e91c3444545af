package integration

import "testing"

func TestCanonical(t *testing.T) {
	raw := `{"spec":{"runtimeRef":{"name":"torch"},"trainer":{"numNodes":2,"resourcesPerNode":
		{"requests":{"cpu":4,"nvidia.com/gpu":"8","a~b/c":"1000m"}}},
		"runtimePatches":[{"manager":"a.com/a","future":1,"trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[
		{"name":"node","template":{"spec":{"template":{"spec":{"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1024Mi"}}],
		"containers":[{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v","readOnly":false}]}]}}}}}]}}}}]}}`
	rq := requestOf(t, false, "", raw)
	sent, err := rq.Sent()
	if err != nil {
		t.Fatal(err)
	}
	operations, err := canonical(sent, rq.New)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for _, o := range operations {
		if o.Operation != "replace" {
			t.Errorf("nothing is added or removed, but there is %v", o)
		}
		got[o.Path] = o.Value
	}
	want := map[string]any{
		"/spec/trainer/resourcesPerNode/requests/cpu":     "4",
		"/spec/trainer/resourcesPerNode/requests/a~0b~1c": "1",
		"/spec/runtimePatches/0/trainingRuntimeSpec/template/spec/replicatedJobs/0/template/spec/template/spec/" +
			"volumes/0/emptyDir/sizeLimit": "1Gi",
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for path, value := range want {
		if got[path] != value {
			t.Errorf("%s: got %v, want %v", path, got[path], value)
		}
	}
}
