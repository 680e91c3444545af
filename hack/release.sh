#!/usr/bin/env bash
# Leaves a release of VERSION under dist/, or the images; PUSH=REGISTRY/NAME pushes the images as well: release.sh
# release|image|both|push. REGISTRY (HOST/ORGANIZATION) is where the charts look for the images. All is of a commit: the
# same one gives the same bytes. make release and make image run it.
set -euo pipefail
cd "$(dirname "$0")/.."
# The bytes don't depend on who builds. Nobody debugs what is stripped, and .ci/run has compiled it in this way already.
export GOFLAGS=-gcflags=all=-dwarf=false CGO_ENABLED=0
version=${VERSION:-$(git describe --tags --match 'v*' --dirty 2>/dev/null || echo v0.1.0-dev)}
commit=$(git rev-parse HEAD)$([ -z "$(git status --porcelain)" ] || echo -dirty)
date=$(TZ=UTC git show -s --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)
platforms=(${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64}) # fewer in a quick rehearsal
linux=()
for platform in "${platforms[@]}"; do
	[[ $platform != linux/* ]] || linux+=("$platform")
done

# build PROGRAM PLATFORMS…
build() {
	local platform suffix
	for platform in "${@:2}"; do
		echo "Building $1 for $platform."
		suffix=
		[[ $platform != windows/* ]] || suffix=.exe
		GOOS=${platform%/*} GOARCH=${platform#*/} go build -trimpath -buildvcs=false \
			-ldflags "-s -w -X main.version=$version -X main.commit=$commit -X main.date=$date" \
			-o "dist/$1-${platform/\//-}$suffix" "./cmd/$1"
	done
}

# files leaves all programs in dist/, and what a release has beside them.
files() {
	rm -rf dist
	mkdir dist
	notes "${version%%-*}" >dist/notes.md
	build signalbox "${linux[@]}"
	build kubectl-signalbox "${platforms[@]}"
	licences
	go run -C test/chart ./release "$PWD" "$PWD/dist" "$version" "$commit" "$date"
	touch -d "$date" dist/*.tgz # helm push takes it for the time at which a chart was made
	cat dist/SHA256SUMS
}

# notes VERSION prints the section of the changelog.
notes() {
	local heading="## $1"
	grep -qFx "$heading" CHANGELOG.md || { echo "CHANGELOG.md has no section $heading" >&2; return 1; }
	awk -v heading="$heading" '/^## / { inside = $0 == heading } inside' CHANGELOG.md
}

# licences leaves the texts of the licences of what is linked.
licences() { go run -C hack/image ./notice "$PWD" "$PWD/dist/LICENSES.txt"; }

# image PROGRAM SUFFIX
image() {
	go run -C hack/image ./build --dist "$PWD/dist" --version "$version" --revision "$commit" --date "$date" \
		--program "$1" --name "signalbox-dev/signalbox$2" \
		--text "$PWD/LICENSE" --text "$PWD/NOTICE" --text "$PWD/dist/LICENSES.txt" ${PUSH:+--push "$PUSH$2"}
}

images() {
	image signalbox ""
	image kubectl-signalbox -dashboard # which serves the page (dashboard.enabled of the chart)
}

case ${1:-} in
release) files ;;
image)
	mkdir -p dist
	build signalbox "${linux[@]}"
	build kubectl-signalbox "${linux[@]}"
	licences
	images
	;;
both)
	files
	images
	;;
push) images ;;
*)
	echo "What is to be built? release.sh release, image or both; release.sh push pushes what is built" >&2
	exit 2
	;;
esac
