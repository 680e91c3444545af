#!/usr/bin/env bash
# Rehearses the release of VERSION up to the button, with a key that is thrown away: builds it twice and compares, pushes
# it to a registry, signs and verifies it, and on real nodes installs the commit BEFORE, upgrades that to the release,
# rolls back, and uninstalls. make release-rehearsal runs it; rehearse.sh inside is the part beside the nodes.
set -euo pipefail
cd "$(dirname "$0")/../.."
export VERSION BEFORE REGISTRY=10.200.0.1:5000
chart=${VERSION#v}
if [ "${1:-}" != inside ]; then
	[ -z "$(git status --porcelain)" ] || { echo "Commit first: a release is of a commit."; exit 1; }
	before=$(git rev-parse "$BEFORE")
	hack/release.sh both
	rm -rf .again .before
	git clone -q . .again
	git clone -q . .before && git -C .before checkout -q "$before"
	(cd .again && hack/release.sh both >/dev/null)
	for file in SHA256SUMS signalbox.digest signalbox-dashboard.digest; do
		cmp "dist/$file" ".again/dist/$file"
	done
	echo "Another clone gives the same bytes: $(wc -l <dist/SHA256SUMS) files, and both images."
	rm -rf .again
	mkdir .before/dist
	(cd .before && go build -trimpath -ldflags '-s -w' -o "dist/signalbox-linux-$(go env GOARCH)" ./cmd/signalbox)
	go build -C hack/image -o "$PWD/bin/" ./registry
	go build -modfile=go.release.mod -o bin/cosign github.com/sigstore/cosign/v3/cmd/cosign
	SIGNALBOX_STATE=$PWD/.cluster-rehearsal exec bin/cluster run --profile node-bare -- test/release/rehearse.sh inside
fi

. test/release/registry.sh
began "push and sign"
go run -C hack/image ./build --dist "$PWD/.before/dist" --version before --revision before \
	--date 2026-01-01T00:00:00Z --name before/signalbox --push "$registry/before"
export COSIGN_PASSWORD= COSIGN_ARGS=--allow-http-registry HELM_ARGS=--plain-http KEY=$work/cosign.pub
(cd "$work" && cosign generate-key-pair)
# Neither a transparency log nor an authority.
echo '{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"}' >"$work/signing.json"
SIGN="--key $work/cosign.key --signing-config $work/signing.json --yes" hack/publish.sh "$registry"
mapfile -t artifacts <dist/artifacts.txt

# What SLSA's generator adds to the images, in its form.
(cd "$work" && cosign generate-key-pair --output-key-prefix builder)
export BUILDER_KEY=$work/builder.pub SLSA=1
for artifact in "${artifacts[@]:0:2}"; do
	cosign attest --key "$work/builder.key" --signing-config "$work/signing.json" --yes $COSIGN_ARGS \
		--new-bundle-format=false --type slsaprovenance --predicate dist/provenance.json "$artifact"
done

began "verify"
release=$work/release
mkdir "$release" # as users have it who download it
cp $(hack/publish.sh files) "$release"
hack/verify-release.sh "$release" "${artifacts[@]}"
refused() {
	if "$@" >"$work/refused" 2>&1; then
		cat "$work/refused"
		echo "This was to be refused: $*"
		exit 1
	fi
}
refused hack/verify-release.sh "$release" "$registry/before@$(cat .before/dist/signalbox.digest)"
cp -r "$release" "$work/changed"
echo >>"$work/changed/signalbox.yaml"
refused hack/verify-release.sh "$work/changed" "${artifacts[@]}"
cp -r "$release" "$work/added"
touch "$work/added/install.sh"
refused hack/verify-release.sh "$work/added" "${artifacts[@]}"
refused hack/verify-release.sh "$release"
(cd "$work" && cosign generate-key-pair --output-key-prefix another)
KEY=$work/another.pub refused hack/verify-release.sh "$release" "${artifacts[@]}"
BUILDER_KEY=$work/another.pub refused hack/verify-release.sh "$release" "${artifacts[@]}"
echo "Not verified: an image that nobody signed, a file that was changed or added, nothing, and all of it by other keys."

# all is the names of what is in the cluster, but for what comes and goes by itself, as Kueue's pods after its restart.
all() {
	kubectl api-resources --verbs=list -o name | grep -vE '^(events|leases|pods\.metrics)|^(localqueues|clusterqueues)\.visibility' |
		while read -r kind; do kubectl get "$kind" -A -o name --ignore-not-found 2>/dev/null | sed "s#^#$kind #"; done | grep -v '/kueue-controller-manager-' | sort
}
# trains runs two PyTorch processes to their end.
trains() {
	kubectl apply -k examples/training >/dev/null
	kubectl -n research wait trainjob/regression --for=condition=Complete --timeout=2m
	kubectl -n research delete trainjob regression --timeout=1m
}
began "Kueue"
(cd "$work" && kueue >/dev/null)
all >"$work/before"

began "install the commit before"
helm install signalbox .before/charts/signalbox --namespace signalbox-system --create-namespace --wait --timeout 2m \
	--set "image.repository=$registry/before,image.tag=before"
trains
began "upgrade to $VERSION"
helm upgrade signalbox "oci://$registry/charts/signalbox" --version "$chart" --plain-http --namespace signalbox-system \
	--wait --timeout 2m --set "image.digest=$(cat dist/signalbox.digest)" \
	--set "dashboard.enabled=true,dashboard.image.digest=$(cat dist/signalbox-dashboard.digest)"
kubectl -n signalbox-system get pods -o jsonpath='{range .items[*]}{.spec.containers[0].image}{"\n"}{end}'
helm install runtimes "oci://$registry/charts/signalbox-runtimes" --version "$chart" --plain-http
[ "$(kubectl get clustertrainingruntimes -o name | wc -l)" -ge 5 ]
trains
began "roll back"
helm rollback signalbox 1 --namespace signalbox-system --wait --timeout 2m
trains
began "uninstall"
kubectl delete -k examples/training --timeout=1m --ignore-not-found >/dev/null
helm uninstall runtimes --wait
helm uninstall signalbox --namespace signalbox-system --wait
kubectl -n signalbox-system wait --for=delete pod -l app.kubernetes.io/part-of=signalbox --timeout=1m
kubectl delete crd $(kubectl get crd -o name | grep -E '(trainer\.kubeflow|usage\.signalbox)' | sed 's#.*/##')
all >"$work/after"
if ! diff "$work/before" "$work/after"; then
	echo "These are left of Signalbox, or missing."
	exit 1
fi
echo "Nothing is left of Signalbox."
began ""
echo "Rehearsed $VERSION in $SECONDS s, beside the nodes."
