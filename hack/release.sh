#!/usr/bin/env bash
# Leaves a release of VERSION under dist/, or the image; PUSH=REGISTRY/NAME pushes the image as well: release.sh
# release|image. All is of a commit: the same one gives the same bytes. make release and make image run it.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${VERSION:-$(git describe --tags --match 'v*' --dirty 2>/dev/null || echo v0.1.0-dev)}
commit=$(git rev-parse HEAD)$([ -z "$(git status --porcelain)" ] || echo -dirty)
date=$(TZ=UTC git show -s --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)

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

linux=(linux/amd64 linux/arm64)
case ${1:-} in
release)
	rm -rf dist
	mkdir dist
	build signalbox "${linux[@]}"
	build kubectl-signalbox "${linux[@]}" darwin/amd64 darwin/arm64 windows/amd64
	go run -C test/chart ./release "$PWD" "$PWD/dist" "$version" "$date"
	cat dist/SHA256SUMS
	;;
image)
	mkdir -p dist
	build signalbox "${linux[@]}"
	build kubectl-signalbox "${linux[@]}" # which serves the page (dashboard.enabled of the chart)
	image() {
		go run -C hack/image ./build --dist "$PWD/dist" --version "$version" --revision "$commit" --date "$date" \
			--program "$1" --name "signalbox-dev/signalbox$2" ${PUSH:+--push "$PUSH$2"}
	}
	image signalbox ""
	image kubectl-signalbox -dashboard
	;;
*)
	echo "What is to be built? release.sh release or release.sh image" >&2
	exit 2
	;;
esac
