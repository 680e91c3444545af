#!/usr/bin/env bash
# Starts a manager cluster and two worker clusters in the background, or stops them: multi.sh up|down. One kubeconfig of
# all has the contexts of docs/multikueue.md. make multi and make multi-down run it.
set -euo pipefail
cd "$(dirname "$0")/../.."
kubeconfigs=
for name in manager worker-1 worker-2; do
	state=$PWD/.cluster-$name
	if [ "$1" = down ]; then
		SIGNALBOX_STATE=$state bin/cluster down || true
		continue
	fi
	SIGNALBOX_STATE=$state bin/cluster up --profile bundled
	sed -E "s/^(.*(name|cluster|user|current-context):) (signalbox|admin)$/\1 $name/" "$state/kubeconfig" \
		>"$state/named.kubeconfig"
	kubeconfigs+=${kubeconfigs:+:}$state/named.kubeconfig
done
[ "$1" = up ] || exit 0
echo "export KUBECONFIG=$kubeconfigs"
echo "Go on with docs/multikueue.md. Kueue's configuration in the manager cluster: .cluster-manager/config/kueue.yaml"
