#!/usr/bin/env bash
# Compares what is linked with Go's vulnerability database, or with the copy of it that is named. It succeeds if the
# database can't be reached, because CI may run without a network. VEX=FILE writes what was found as OpenVEX, for those
# who scan the images; the database has to be reached for that.
database=${1:-https://vuln.go.dev}
if [ -n "${VEX:-}" ]; then
	set -euo pipefail
	# govulncheck doesn't know of what it is, and leaves the statements out if there are none.
	go tool -modfile=go.tools.mod govulncheck -db "$database" -format openvex ./cmd/... |
		sed -e 's/"Unknown Author"/"Signalbox maintainers"/' -e 's#"Unknown Product"#"pkg:golang/github.com/signalbox-dev/signalbox"#' >"$VEX"
	grep -q '"statements"' "$VEX" || sed -i -e 's/"tooling": .*"$/&,/' -e 's/^}$/  "statements": []\n}/' "$VEX"
	exit
fi
out=$(go tool -modfile=go.tools.mod govulncheck -db "$database" ./... 2>&1)
code=$?
echo "$out"
if [ $code -ne 0 ] && grep -q "fetching vulnerabilities" <<<"$out"; then
	echo "The database can't be reached from here, so nothing was compared. Name a copy of it: make vulncheck VULNDB=URL"
	exit 0
fi
exit $code
