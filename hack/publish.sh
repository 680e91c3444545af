#!/usr/bin/env bash
# Publishes what make release image kubectl has left in dist/: publish.sh REGISTRY. It pushes the images and the charts,
# and signs these and the checksums of all that is published; publish.sh files prints the files of the GitHub release.
# Without more it signs without keys, as the release workflow may. make release-rehearsal sets SIGN, COSIGN_ARGS and
# HELM_ARGS for a key of its own and a registry without TLS.
set -euo pipefail
cd "$(dirname "$0")/.."
files() { ls -d dist/* | grep -vE 'dist/(image|notes\.md|.*-image-[a-z0-9]+\.tar|kubectl-signalbox-[a-z0-9-]+(\.exe)?$)'; }
if [ "${1:-}" = files ]; then
	files
	exit
fi
registry=${1:?publish.sh REGISTRY: where is it to be published? HOST/ORGANIZATION}
cosign=${COSIGN:-cosign}
read -ra sign <<<"${SIGN:---yes}"
read -ra plain <<<"${COSIGN_ARGS:-}"
PUSH=$registry/signalbox hack/release.sh push
for program in signalbox signalbox-dashboard; do
	echo "$registry/$program@$(cat "dist/$program.digest")"
done >dist/artifacts.txt
for chart in signalbox signalbox-runtimes; do
	if ! pushed=$(PATH=$PWD/bin:$PATH helm push dist/$chart-[0-9]*.tgz "oci://$registry/charts" ${HELM_ARGS:-} 2>&1); then
		echo "$pushed" >&2
		exit 1
	fi
	echo "$registry/charts/$chart@$(awk '$1 == "Digest:" {print $2}' <<<"$pushed")" >>dist/artifacts.txt
done
rm -f dist/SHA256SUMS dist/SHA256SUMS.sigstore.json
files | sed 's#^dist/##' | (cd dist && xargs sha256sum | sort >SHA256SUMS)
"$cosign" sign-blob "${sign[@]}" --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS >/dev/null
while read -r artifact; do
	"$cosign" sign "${sign[@]}" "${plain[@]}" "$artifact"
	"$cosign" attest "${sign[@]}" "${plain[@]}" --type slsaprovenance1 --predicate dist/provenance.json "$artifact"
done <dist/artifacts.txt
cat dist/artifacts.txt
