#!/usr/bin/env bash
# Prints the commands of a page below a heading, in their order, as one who copies them would paste them: blocks.sh PAGE
# HEADING. Left out are blocks of another language, those that begin with "$ ", and those without a command.
set -euo pipefail
awk -v heading="$2" '
	/^#+ / && !open { inside = index($0, heading) > 0 }
	!/^```/ { text = text $0 "\n"; next }
	open { open = 0; if (wanted && text !~ /^\$ / && text ~ /(^|\n) *(kubectl|helm|make|apt-get) /) printf "%s", text; next }
	{ open = 1; wanted = inside && ($0 == "```" || $0 ~ /^```(ba)?sh( |$)/); text = "" }' "$1"
