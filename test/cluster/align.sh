#!/usr/bin/env bash
# Raises the dependencies of components/NAME to those of components/kubernetes, where these are newer, so that what both
# have in common is compiled once:
#   test/cluster/align.sh kwok
# For what serves the control plane, such as kwok. What is tested keeps the dependencies of its release.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -f "$(dirname "$0")/components/$1/go.mod" ]; then
	echo "usage: $0 NAME, a folder of $(dirname "$0")/components" >&2
	exit 2
fi
cd "$(dirname "$0")/components"
required() {
	awk '$1 ~ /\./ && $2 ~ /^v[0-9]/ {print $1, $2} $1 == "require" && $3 ~ /^v/ {print $2, $3}' "$1/go.mod" | sort
}
raised=()
while read -r module has wanted; do
	if [ "$has" != "$wanted" ] && [ "$(printf '%s\n%s\n' "$has" "$wanted" | sort -V | tail -1)" = "$wanted" ]; then
		raised+=("-require=$module@$wanted")
	fi
done < <(join <(required "$1") <(required kubernetes))
cd "$1"
[ ${#raised[@]} -eq 0 ] || go mod edit "${raised[@]}"
go mod tidy
echo "components/$1: ${#raised[@]} dependencies raised. Run what uses it: make demo, or make test-node."
