#!/usr/bin/env bash
# Prints every alpha and beta feature gate of Kueue, by name: its AllAlpha and AllBeta turn on client-go's gates as well,
# CBOR among them, with which Kueue v0.19.2 ends. Those that stay off are left out; docs/kueue.md says why.
set -euo pipefail
awk '/^\t[A-Za-z]+: \{/ {name = substr($1, 1, length($1) - 1)}
	/PreRelease:/ {last[name] = $0}
	END {for (name in last) if (last[name] ~ /featuregate\.(Alpha|Beta)/) print name}' \
	"$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/pkg/features/kube_features.go" |
	grep -vxE 'MultiKueueClusterProfile|DisableWaitForPodsReady|SchedulerLibraryIntegration' | sort | paste -sd,
