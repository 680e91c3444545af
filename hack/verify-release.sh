#!/usr/bin/env bash
# Verifies a release: verify-release.sh DIST NAME@DIGEST…
# DIST is the folder with the release's files, its SHA256SUMS and SHA256SUMS.sigstore.json; each NAME@DIGEST is an image
# or a chart. A release is signed without keys, by its workflow on GitHub. SLSA=1 also verifies what SLSA's generator says
# of the images. KEY=FILE compares with a public key instead, and BUILDER_KEY=FILE the generator's, without a
# transparency log, as the rehearsal needs. It needs cosign 3 (COSIGN names it).
set -euo pipefail
if [ $# -lt 2 ]; then
	echo "usage: $0 DIST NAME@DIGEST…: name what is to be verified; DIST/artifacts.txt has it" >&2
	exit 2
fi
cosign=${COSIGN:-cosign}
read -ra plain <<<"${COSIGN_ARGS:-}"
issuer=(--certificate-oidc-issuer https://token.actions.githubusercontent.com --certificate-identity-regexp)
generator='https://github.com/slsa-framework/slsa-github-generator/\.github/workflows/generator_container_slsa3\.yml'
signer=("${issuer[@]}" '^https://github.com/signalbox-dev/signalbox/\.github/workflows/release\.yml@refs/tags/v')
builder=("${issuer[@]}" "^$generator@refs/tags/v")
[ -z "${KEY:-}" ] || signer=(--key "$KEY" --insecure-ignore-tlog)
[ -z "${BUILDER_KEY:-}" ] || builder=(--key "$BUILDER_KEY" --insecure-ignore-tlog)
dist=$1
shift
"$cosign" verify-blob "${signer[@]}" --bundle "$dist/SHA256SUMS.sigstore.json" "$dist/SHA256SUMS"
(cd "$dist" && sha256sum --check --strict --ignore-missing --quiet SHA256SUMS)
for file in "$dist"/*; do
	name=${file##*/}
	case $name in
	SHA256SUMS | SHA256SUMS.sigstore.json | *.intoto.jsonl) ;; # they are what is verified with, or signed themselves
	*) grep -q "^[0-9a-f]\{64\}  ${name//./\\.}\$" "$dist/SHA256SUMS" || { echo "$file isn't in SHA256SUMS" >&2; exit 1; } ;;
	esac
done
echo "$dist: the files are those that were signed"
for artifact; do
	[[ $artifact == ?*@sha256:* ]] || { echo "\"$artifact\" names nothing by its digest: NAME@sha256:…" >&2; exit 1; }
	"$cosign" verify "${signer[@]}" "${plain[@]}" "$artifact" >/dev/null
	"$cosign" verify-attestation "${signer[@]}" "${plain[@]}" --type slsaprovenance1 "$artifact" >/dev/null
	if [ -n "${SLSA:-}" ] && [[ $artifact != */charts/signalbox@* && $artifact != */charts/signalbox-runtimes@* ]]; then
		# The generator attests in the form of cosign 2, which cosign 3 doesn't look for beside the other.
		"$cosign" verify-attestation "${builder[@]}" "${plain[@]}" --new-bundle-format=false --type slsaprovenance \
			"$artifact" >/dev/null
	fi
	echo "$artifact: signed, and its provenance attested"
done
