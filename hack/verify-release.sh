#!/usr/bin/env bash
# Verifies a release: verify-release.sh DIST NAME@DIGEST…
# DIST is the folder with the release's files, its SHA256SUMS and SHA256SUMS.sigstore.json; each NAME@DIGEST is an image
# or a chart. A release is signed without keys, by its workflow on GitHub; SLSA=1 also verifies what SLSA's generator says
# of the images. KEY=FILE compares with a public key instead, and without a transparency log, as the rehearsal needs. It
# needs cosign 3 (COSIGN names it).
set -euo pipefail
cosign=${COSIGN:-cosign}
read -ra plain <<<"${COSIGN_ARGS:-}"
issuer=(--certificate-oidc-issuer https://token.actions.githubusercontent.com --certificate-identity-regexp)
signer=("${issuer[@]}" '^https://github.com/signalbox-dev/signalbox/\.github/workflows/release\.yml@refs/tags/v')
builder=("${issuer[@]}" '^https://github.com/slsa-framework/slsa-github-generator/\.github/workflows/generator_container_slsa3\.yml@refs/tags/v')
[ -z "${KEY:-}" ] || signer=(--key "$KEY" --insecure-ignore-tlog)
[ $# -ge 2 ] || { echo "usage: $0 DIST NAME@DIGEST…: name what is to be verified; DIST/artifacts.txt has it" >&2; exit 2; }
dist=$1
shift
"$cosign" verify-blob "${signer[@]}" --bundle "$dist/SHA256SUMS.sigstore.json" "$dist/SHA256SUMS"
(cd "$dist" && sha256sum --check --ignore-missing --quiet SHA256SUMS)
echo "$dist: the files are those that were signed"
for artifact; do
	"$cosign" verify "${signer[@]}" "${plain[@]}" "$artifact" >/dev/null
	"$cosign" verify-attestation "${signer[@]}" "${plain[@]}" --type slsaprovenance1 "$artifact" >/dev/null
	if [ -n "${SLSA:-}" ] && [[ $artifact != */charts/* ]]; then
		"$cosign" verify-attestation "${builder[@]}" --type slsaprovenance "$artifact" >/dev/null
	fi
	echo "$artifact: signed, and its provenance attested"
done
