#!/usr/bin/env bash
# Runs the end-to-end suite on other releases, such as KUEUE=0.18,JOBSET=0.10, AT_ONCE of them side by side, and records
# the results. What isn't named is the default release. make test-versions runs it.
set -uo pipefail
cd "$(dirname "$0")/../.."
# Without = and commas, which some components take for separators in their arguments.
name() { tr =, - <<<"$1"; }
suite() {
	local log
	log=versions/$(name "$1").log
	rm -f "junit-$(name "$1").xml"
	SIGNALBOX_STATE=$PWD/.cluster-$(name "$1") ${MAKE:-make} test-e2e SUITE="$(name "$1")" ${1//,/ } >"$log" 2>&1
	local code=$?
	echo "$1: $(grep -E '^(Ran|FAIL!|SUCCESS!)' "$log" | tr '\n' ' ')($log)"
	return $code
}
export -f name suite
mkdir -p versions
for version in "$@"; do
	# KUEUE=0.18,JOBSET=0.10 becomes --kueue 0.18 --jobset 0.10.
	bin/cluster build $(tr A-Z,= 'a-z\n ' <<<"$version" | sed 's/^/--/') || exit 1
done
printf '%s\n' "$@" | xargs -P "${AT_ONCE:-2}" -I{} bash -c 'suite "$1"' suite {}
failed=$?
for version in "$@"; do
	go run ./test/compatibility --releases "$version" --record "junit-$(name "$version").xml" || failed=1
done
exit $failed
