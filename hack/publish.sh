#!/usr/bin/env bash
# Publishes what make release image kubectl has left in dist/: pushes the images and the charts to REGISTRY, and signs and
# attests these and the checksums: publish.sh REGISTRY. publish.sh files prints the files of the GitHub release.
# Without more it signs without keys, as the release workflow may. make release-rehearsal sets SIGN, COSIGN_ARGS and
# HELM_ARGS for a key of its own and a registry without TLS.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$1" = files ]; then
	ls -d dist/* | grep -vE 'dist/(image|notes\.md|.*-image-[a-z0-9]+\.tar|kubectl-signalbox-[a-z0-9-]+(\.exe)?$)'
	exit
fi
registry=$1
cosign=${COSIGN:-cosign}
read -ra sign <<<"${SIGN:---yes}"
read -ra plain <<<"${COSIGN_ARGS:-}"
PUSH=$registry/signalbox hack/release.sh push
for program in signalbox signalbox-dashboard; do
	echo "$registry/$program@$(cat "dist/$program.digest")"
done >dist/artifacts.txt
for chart in signalbox signalbox-runtimes; do
	pushed=$(PATH=$PWD/bin:$PATH helm push dist/$chart-[0-9]*.tgz "oci://$registry/charts" ${HELM_ARGS:-} 2>&1)
	echo "$registry/charts/$chart@$(awk '$1 == "Digest:" {print $2}' <<<"$pushed")" >>dist/artifacts.txt
done
"$cosign" sign-blob "${sign[@]}" --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS >/dev/null
while read -r artifact; do
	"$cosign" sign "${sign[@]}" "${plain[@]}" "$artifact"
	"$cosign" attest "${sign[@]}" "${plain[@]}" --type slsaprovenance1 --predicate dist/provenance.json "$artifact"
done <dist/artifacts.txt
cat dist/artifacts.txt
