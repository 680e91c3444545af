#!/usr/bin/env bash
# Pins other releases in every module that names them: bump.sh kueue=v0.20.0 kubernetes=v1.38.0. Those without a version
# stay. Modules of earlier releases under components/ stay too.
set -euo pipefail
cd "$(dirname "$0")/../.."
pinned=()
for asked in "$@"; do
	name=${asked%%=*} version=${asked#*=}
	[ -n "$version" ] || continue
	if ! [[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.]+)?$ ]]; then
		echo "$name=$version: write a version as v1.2.3" >&2
		exit 2
	fi
	case $name in
	kueue | jobset)
		pinned+=("sigs.k8s.io/$name@$version")
		# The release that is the default in the table of servers.
		old=$(awk -v module="sigs.k8s.io/$name" '$1 == module {print $2; exit}' go.mod)
		minor() { sed -E 's/^v([0-9]+\.[0-9]+)\..*/\1/' <<<"$1"; }
		sed -i "s/{\"$(minor "$old")\", \"$old\", defaultModule}/{\"$(minor "$version")\", \"$version\", defaultModule}/" \
			test/cluster/versions.go
		;;
	trainer) pinned+=("github.com/kubeflow/trainer/v2@$version") ;;
	kubernetes) pinned+=("k8s.io/kubernetes@$version" "staging@v0.${version#v1.}") ;;
	*)
		echo "nothing is named $name; there are kueue, jobset, trainer and kubernetes" >&2
		exit 2
		;;
	esac
done
if [ ${#pinned[@]} -eq 0 ]; then
	echo "Which release? For example: make bump KUEUE=v0.20.0" >&2
	exit 2
fi
for module in . hack/image test/chart test/cluster test/cluster/components/kubernetes; do
	edits=()
	for pin in "${pinned[@]}"; do
		if [ "${pin%@*}" = staging ]; then # Kubernetes' own modules, which are released with it
			for staged in $(awk '$1 ~ /^k8s\.io\// && $2 ~ /^v0\.[0-9]+\.[0-9]+$/ {print $1}' "$module/go.mod"); do
				edits+=(-require="$staged@${pin#*@}")
			done
		elif grep -qE "^[[:space:]]*(require )?${pin%@*} v" "$module/go.mod"; then
			edits+=(-require="$pin")
		fi
	done
	[ ${#edits[@]} -gt 0 ] || continue
	echo "$module: ${edits[*]}"
	(cd "$module" && go mod edit "${edits[@]}" && go mod tidy)
done
for module in . test/cluster test/chart; do
	(cd "$module" && go build ./... && go vet ./...)
done
