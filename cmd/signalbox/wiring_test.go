package main

import (
	"testing"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

func TestLimitsOf(t *testing.T) {
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	for content, want := range map[string]overrides.Limits{
		"": {Pods: 5000, SpecBytes: 256 << 10, Elements: 1000, GracePeriodSeconds: 3600},
		"limits: {pods: 1, specBytes: 2, elements: 3, terminationGracePeriodSeconds: 4}\n": {
			Pods: 1, SpecBytes: 2, Elements: 3, GracePeriodSeconds: 4},
		"limits: {hostPaths: true, secrets: false}\n": {Pods: 5000, SpecBytes: 256 << 10, Elements: 1000,
			GracePeriodSeconds: 3600, HostPaths: true, NoSecrets: true},
		"trainer: {enabled: false}\n": {Pods: 5000, SpecBytes: 256 << 10, Elements: 1000, GracePeriodSeconds: 3600,
			PodsReplaced: true},
	} {
		config, err := configapi.Parse([]byte(head + content))
		if err != nil {
			t.Fatal(err)
		}
		if got := limitsOf(config); got != want {
			t.Errorf("%s: got %+v, want %+v", content, got, want)
		}
	}
}
