# Sourced by what runs beside real nodes, in their machine: starts a registry that the nodes pull from, and has kubectl
# and Helm talk to the cluster. $registry is its address, and $repository the folder of the project.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
registry=10.200.0.1:5000 # planeAddress of test/cluster
work=$(mktemp -d)
export KUBECONFIG=$SIGNALBOX_CLUSTER/kubeconfig PATH=$repository/bin:$PATH HELM_CACHE_HOME=$work HELM_CONFIG_HOME=$work \
	HELM_DATA_HOME=$work
registry --listen "$registry" 2>"$work/registry.log" &
trap 'kill %1; rm -rf "$work"' EXIT
until (: <"/dev/tcp/${registry/:/\/}") 2>/dev/null; do
	kill -0 %1 || { cat "$work/registry.log"; exit 1; }
done
mkdir -p "$SIGNALBOX_CLUSTER/config/registries/$registry"
cat >"$SIGNALBOX_CLUSTER/config/registries/$registry/hosts.toml" <<TOML
server = "http://$registry"
[host."http://$registry"]
capabilities = ["pull", "resolve"]
TOML

# began NAME begins a part, whose time is printed when the next begins.
began() {
	[ -z "${part:-}" ] || echo "=== $part: $((SECONDS - since)) s"
	part=$1 since=$SECONDS
}

# pasted PAGE HEADING [SED…] runs the commands of a page below a heading, changed as sed says.
pasted() {
	echo "--- $1, $2"
	"$repository/test/release/blocks.sh" "$repository/$1" "$2" | sed "${@:3}" -e 's/^/ /' | sed 's/^ //' >"$work/commands"
	[ -s "$work/commands" ] || { echo "$1 has no commands below $2"; exit 1; }
	bash -euxo pipefail "$work/commands"
}

# kueue has Kueue leave TrainJobs to Signalbox, as the page says.
kueue() {
	pasted docs/quick-start.md '1. Let Kueue' -e "s#KUEUE-CHART#$(go list -C "$repository" -m -f '{{.Dir}}' sigs.k8s.io/kueue)/charts/kueue#"
	kubectl -n kueue-system rollout status deployment kueue-controller-manager --timeout=2m
}
