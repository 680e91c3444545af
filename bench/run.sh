#!/usr/bin/env bash
# Measures what WHAT names; make bench runs it and passes on its variables. README.md describes what each measures.
set -euo pipefail
cd "$(dirname "$0")/.."
WHAT=${WHAT:-load} QUICK=${QUICK:-}
read -ra releases <<<"${RELEASES:-}"
read -ra profiles <<<"${PROFILES-bundled builtin $([ -n "$QUICK" ] || echo kubeflow)}"
# QUICK measures the ratios alone, in minutes. A variable that is set to nothing leaves its part out.
if [ "$WHAT" = profile ]; then
	bursts=${BURSTS-500} deep=${DEEP-10000}
elif [ -n "$QUICK" ]; then
	bursts=${BURSTS-100} large=${LARGE-} waiting=${WAITING-} deep=${DEEP-} rounds=${ROUNDS:-2}
else
	bursts=${BURSTS-100,500} large=${LARGE-1000} waiting=${WAITING-100,1000} rounds=${ROUNDS:-4}
	deep=${DEEP-100,100,10000,10000,10000}
fi

# on PROFILE ARGUMENTS… measures on a control plane of that profile.
on() {
	bin/cluster run --profile "$1" "${releases[@]}" -- "$PWD/bin/bench" "$2" --out "$PWD/bench/results" "${@:3}"
}

# only PROFILES… prints those of them that are to be measured, in their order.
only() {
	for profile in "${profiles[@]}"; do
		[[ " $* " != *" $profile "* ]] || echo "$profile"
	done
}

# load PROFILE NAME ARGUMENTS… measures bursts and what waits into bench/.raw/PROFILE-NAME.json. MEMORY=1Gi is the
# manager's memory limit, in place of the chart's.
load() {
	${MEMORY:+env SIGNALBOX_MEMORY="$MEMORY"} bin/cluster run --profile "$1" "${releases[@]}" -- "$PWD/bin/bench" load \
		--profile "$1" ${QUEUES:+--queues "$QUEUES"} --out "$PWD/bench/.raw/$1-$2.json" "${@:3}"
}

# turns measures the profiles in turns, so that a slower hour of the machine meets all of them.
turns() {
	rm -rf bench/.raw
	for profile in "${profiles[@]}"; do load "$profile" 1 --few ${bursts:+--bursts "$bursts"}; done
	if [ -n "$bursts" ]; then
		for ((round = 2; round <= rounds; round++)); do
			for profile in $(only bundled builtin); do load "$profile" "$round" --bursts "$bursts"; done
		done
	fi
	if [ -n "$waiting$deep" ]; then
		for profile in $(only bundled); do load "$profile" waiting --waiting "$waiting${waiting:+${deep:+,}}$deep"; done
	fi
	if [ -n "$large" ]; then
		for profile in $(only bundled builtin); do load "$profile" large --bursts "$large"; done
	fi
	if [ -n "$waiting" ]; then
		for profile in $(only builtin kubeflow); do load "$profile" waiting --waiting "$waiting"; done
	fi
	bin/bench report bench/.raw --suffix "${KUBERNETES:+-kubernetes-$KUBERNETES}${QUICK:+-quick}"
}

# trainings COLUMN… measures trainings in ROUNDS turns, and puts the columns beside each other. A column is a profile,
# and what is added to the arguments after a colon. TRAIN_ARGS are further arguments, such as '--jobs 60 --seed 2'.
trainings() {
	rm -rf "bench/.raw/$WHAT"
	for ((round = 1; round <= ${ROUNDS:-1}; round++)); do
		for column in "$@"; do
			read -ra more <<<"${TRAIN_ARGS:-} ${column#*:}"
			bin/cluster run --profile "${column%%:*}" "${releases[@]}" -- "$PWD/bin/bench" "$WHAT" --for "${MINUTES:-60}m" \
				--profile "${column%%:*}" --out "$PWD/bench/.raw/$WHAT/${column//[^a-z0-9]/}-$round.json" "${more[@]}"
		done
	done
	bin/bench beside "bench/.raw/$WHAT"
}

# micro times single functions, and compares them by benchstat with those of SINCE, the last release by default.
micro() {
	local since=${SINCE-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null)} old=bench/.micro/since
	local measure=(go test -run XXX -bench . -benchmem -count "${COUNT:-6}" ./review ./overrides ./podsets ./admission ./trainer)
	mkdir -p bench/.micro
	"${measure[@]}" | tee bench/.micro/now.txt
	if [ -z "$since" ]; then
		echo "There is no release to compare with; name a commit: make bench WHAT=micro SINCE=COMMIT"
		return
	fi
	rm -rf "$old"
	git worktree prune
	git worktree add --detach "$old" "$since"
	echo "Now the same of $since."
	trap 'git worktree remove --force bench/.micro/since' EXIT
	(cd "$old" && "${measure[@]}") | tee "$old.txt"
	go tool -modfile=go.tools.mod benchstat "$old.txt" bench/.micro/now.txt
}

[[ $WHAT =~ ^(micro|replay|dashboard)$ ]] || go build -C bench -o "$PWD/bin/bench" .
case $WHAT in
load) turns ;;
profile)
	rm -rf bench/.raw/profiles
	load bundled profiled --bursts "$bursts" ${deep:+--waiting "$deep"} --pprof "$PWD/bench/.raw/profiles"
	ls bench/.raw/profiles
	;;
churn) on bundled churn --waiting "${CHURN_WAITING:-1000}" --queues "${CHURN_QUEUES:-100}" ${HOURS:+--for "${HOURS}h"} ;;
storm) for profile in $(only bundled builtin); do on "$profile" storm --profile "$profile" --jobs "${STORM:-1000}"; done ;;
lost | broken) trainings $(only bundled builtin | sed s/$/:/) ;;
grow)
	go build -C test/chart -o "$PWD/bin/" helm.sh/helm/v3/cmd/helm
	mkdir -p bench/.raw
	bin/helm template signalbox charts/signalbox --kube-version 1.36 \
		--set config.grow.enabled=true,policies.enabled=true \
		--show-only templates/policies.yaml >bench/.raw/policies.yaml
	trainings bundled: 'bundled:--every 0s'
	;;
foreign) on bundled foreign --jobs "${FOREIGN:-1000}" ;;
large | gangs) on bundled "$WHAT" ;;
hostile) on node hostile --rounds "${ROUNDS:-3}" ${ONLY:+--only "$ONLY"} ;;
compare) bin/bench compare "${BEFORE_PAGE:?is missing: the JSON of a page in bench/results}" "${AFTER_PAGE:?is missing}" ;;
trace) bin/bench trace "${LOG:-.cluster/log/audit.log}" ;;
micro) micro ;;
replay) go test ./cmd/kubectl-signalbox/simulate -run TestReplay -v -timeout 0 -args -replay "${JOBS:-500}" ;;
dashboard)
	go build -o bin/demo ./examples/demo
	go build -C bench -o "$PWD/bin/dashboard" ./dashboard
	bin/cluster run --profile bundled -- "$PWD/bin/dashboard" --prometheus "${PROMETHEUS:-prometheus}" --demo "$PWD/bin/demo"
	;;
*)
	echo "Nothing to measure is named $WHAT; README.md has the list." >&2
	exit 2
	;;
esac
