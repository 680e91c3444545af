#!/usr/bin/env bash
# Makes components/NAME-X.Y, the module that pins a release of Kubernetes, Kueue or JobSet for the control plane:
#   test/cluster/pin.sh kubernetes 1.37.2
#   test/cluster/pin.sh kueue 0.18.4
# A release that the checksum database doesn't have is taken with GONOSUMDB=k8s.io/*,sigs.k8s.io/*; its sums are then
# those of this download.
set -euo pipefail
if [ $# -ne 2 ] || ! [[ $2 =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
	echo "usage: $0 kubernetes|kueue|jobset X.Y.Z" >&2
	exit 2
fi
name=$1 version=$2
cd "$(dirname "$0")/components"
folder=$name-${version%.*}
case $name in
kubernetes)
	pin=(-require="k8s.io/kubernetes@v$version")
	for program in kube-apiserver kube-controller-manager kube-scheduler; do
		pin+=(-tool="k8s.io/kubernetes/cmd/$program")
	done
	# Its own modules are replaced by folders of its repository; here each is the release of the same number.
	source=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -nE 's/.*"Dir": "(.*)".*/\1/p')
	while read -r staged; do
		pin+=(-require="$staged@v0.${version#1.}")
	done < <(awk '/=> \.\/staging/ && !/sample-/ {print $1}' "$source/go.mod")
	;;
kueue) pin=(-require="sigs.k8s.io/kueue@v$version" -tool=sigs.k8s.io/kueue/cmd/kueue) ;;
jobset) pin=(-require="sigs.k8s.io/jobset@v$version" -tool=sigs.k8s.io/jobset) ;;
*)
	echo "no program $name; there are kubernetes, kueue and jobset" >&2
	exit 2
	;;
esac
mkdir -p "$folder"
cd "$folder"
printf 'module github.com/signalbox-dev/signalbox/test/cluster/components/%s\n\ngo 1.26.0\n' "$folder" >go.mod
rm -f go.sum
go mod edit "${pin[@]}"
go mod tidy
echo "components/$folder pins $name v$version; its row in versions.go says what it needs besides."
