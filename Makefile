SHELL := /bin/bash
# Everything is built without cgo, so that vet, lint, tests and programs share what is compiled. test/cluster builds
# runc with cgo, which runc needs.
export CGO_ENABLED := 0
PROFILE ?= bundled
# Releases of Kubernetes, Kueue and JobSet other than the default, such as KUBERNETES=1.37 KUEUE=0.18 JOBSET=0.11, and
# further feature gates and APIs of Kubernetes: GATES=CompositePodGroup=true APIS=scheduling.k8s.io/v1alpha3=true.
RELEASES = $(foreach r,KUBERNETES KUEUE JOBSET NEXT_KUBERNETES GATES APIS,$(if $($(r)),--$(subst next_,next-,$(shell echo $(r) | tr A-Z a-z)) $($(r))))
# Where tools of the tree are built; the components of the control plane are cached elsewhere, see docs/development.md.
BIN := $(CURDIR)/bin
comma := ,
TOOL := go tool -modfile=$(CURDIR)/go.tools.mod
COVERED := ./overrides/... ./podsets/... ./admission/... ./store/... ./review/... ./integration/... ./trainer/... ./cmd/signalbox/audit ./cmd/kubectl-signalbox/explain ./cmd/kubectl-signalbox/simulate

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show what there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: go
go:
	@command -v go >/dev/null || { echo "There is no Go here. Install Go 1.26 or later and try again."; exit 1; }
	@go version | grep -qE 'go1\.(2[6-9]|[3-9][0-9])' || { echo "This needs Go 1.26 or later; here is: $$(go version)"; exit 1; }

##@ Use

# real trains for real, on kubelets and containers: NODES=real needs Linux and root.
NODES ?= simulated
DEMO_PROFILE = $(if $(filter real,$(NODES)),node,$(PROFILE))
.PHONY: demo
demo: cluster-tool ## Run the main job on a real control plane; KEEP=1 leaves it up; NODES=real trains for real
	@test -x $(BIN)/demo || echo "Building the demo; the first time takes a minute."
	@go build -o $(BIN)/demo ./examples/demo
ifdef KEEP
	@$(BIN)/cluster up --profile $(DEMO_PROFILE) $(RELEASES) && $(BIN)/demo $(if $(filter real,$(NODES)),--real) --cluster $(CURDIR)/.cluster --keep
else
	@$(BIN)/cluster run --profile $(DEMO_PROFILE) $(RELEASES) -- $(BIN)/demo $(if $(filter real,$(NODES)),--real)
endif

.PHONY: cluster
cluster: cluster-tool ## Start a control plane in the background (PROFILE=bundled|kubeflow|kubeflow-2.1|builtin|…, KUBERNETES=1.37, KUEUE=0.18, JOBSET=0.11)
	@$(BIN)/cluster up --profile $(PROFILE) $(RELEASES)

.PHONY: cluster-down
cluster-down: cluster-tool ## Stop it
	@$(BIN)/cluster down

# One kubeconfig of all, whose contexts are those of docs/multikueue.md.
MULTI := manager worker-1 worker-2
.PHONY: multi multi-down
multi: cluster-tool ## Start a manager cluster and two worker clusters in the background, for docs/multikueue.md
	@for c in $(MULTI); do SIGNALBOX_STATE=$(CURDIR)/.cluster-$$c $(BIN)/cluster up --profile bundled || exit 1; \
		sed -E "s/^(.*(name|cluster|user|current-context):) (signalbox|admin)$$/\1 $$c/" .cluster-$$c/kubeconfig >.cluster-$$c/named.kubeconfig; done
	@echo "export KUBECONFIG=$$(printf '$(CURDIR)/.cluster-%s/named.kubeconfig:' $(MULTI) | sed 's/:$$//')"
	@echo "Go on with docs/multikueue.md. Kueue's configuration in the manager cluster: .cluster-manager/config/kueue.yaml"

multi-down: cluster-tool ## Stop them
	@for c in $(MULTI); do SIGNALBOX_STATE=$(CURDIR)/.cluster-$$c $(BIN)/cluster down; done

.PHONY: cluster-tool
cluster-tool: suites-tool
	@test -x $(BIN)/cluster || echo "Building the program that builds and runs the control plane; the first time takes a minute."
	@go build -C test/cluster -o $(BIN)/cluster .

# test/suites records what a suite does. RETRY=1 runs the specs that failed once more, each suite's on a control plane of
# their own; .ci/run sets it.
RETRY ?=
RUN = $(BIN)/suites run -name
SPECS = $(RUN) $(1) -specs $(if $(RETRY),-retry) $(if $(FOCUS),-focus '$(FOCUS)') --
.PHONY: suites-tool
suites-tool: go
	@mkdir -p $(BIN) && go build -o $(BIN)/suites ./test/suites

##@ Test

# $(call beside,SUITE,OTHERS,BUILDS) runs a suite while others run, one after the other; what they print follows. BUILDS
# are for later, and take what the suites leave of the processors.
define beside
	@echo "make $(2) runs beside make $(1); what it prints follows."
	@$(MAKE) --no-print-directory $(2) >beside.log 2>&1 & beside=$$!; \
		$(if $(3),nice -n 19 $(MAKE) --no-print-directory $(3) >builds.log 2>&1,true) & builds=$$!; \
		$(MAKE) --no-print-directory $(1) || { kill $$beside $$builds; exit 1; }; \
		wait $$beside; code=$$?; cat beside.log; wait $$builds || { cat builds.log; exit 1; }; exit $$code
endef

.PHONY: test
test: suites-tool ## Run all tests: the end-to-end suite with the bundled Trainer, and beside Kubeflow Trainers; NODES=real for test-node too
	@rm -rf coverage/e2e-* junit*.xml $(if $(RETRY),,suites) # .ci/run has steps of its own in suites
	@$(RUN) test-unit -- $(MAKE) --no-print-directory test-unit
ifeq ($(NODES),real)
	@for release in '$(BUNDLED)' ''; do $(MAKE) --no-print-directory build-cluster PROFILE=bundled $$release || exit 1; done
	$(call beside,test-bundled,test-chart test-skew test-kubeflow-2.1 test-gangs $(if $(BUNDLED),test-gangs-default),build-node)
	$(call beside,test-kubeflow,test-node)
else
	@for suite in test-bundled test-kubeflow test-kubeflow-2.1 test-chart; do $(MAKE) --no-print-directory $$suite || exit 1; done
endif
	@$(RUN) chaos -- $(MAKE) --no-print-directory chaos PROFILE=bundled SECONDS=60
	@echo "Statements covered by the unit tests and the end-to-end suite together:"
	@go tool covdata percent -i $$(ls -d coverage/* | paste -sd,) | grep -E 'signalbox/(overrides|podsets|admission|store|integration|trainer)\b'
	@$(BIN)/suites report

# The releases that the bundled suite runs on, such as BUNDLED=KUBERNETES=1.37. With NODES=real its specs of gangs run
# beside it, on the default releases too.
BUNDLED ?=
GANG_SPECS := Gangs|PodGroup API
GANG_SUITE ?= gangs
.PHONY: build-cluster build-node
build-cluster: cluster-tool
	@$(RUN) 'build $(PROFILE) $(strip $(RELEASES))' -- $(BIN)/cluster build --profile $(PROFILE) $(RELEASES)
build-node:
	@$(MAKE) --no-print-directory build-cluster PROFILE=node
.PHONY: test-bundled test-gangs test-gangs-default test-kubeflow test-kubeflow-2.1
test-bundled:
	@$(MAKE) --no-print-directory test-e2e PROFILE=bundled LABELS='!kueue' SKIP=$(if $(filter real,$(NODES)),'$(GANG_SPECS)') $(BUNDLED)
test-gangs:
	@SIGNALBOX_STATE=$(CURDIR)/.cluster-gangs $(MAKE) --no-print-directory test-e2e PROFILE=bundled SUITE=$(GANG_SUITE) FOCUS='$(GANG_SPECS)' $(BUNDLED)
test-gangs-default:
	@$(MAKE) --no-print-directory test-gangs BUNDLED= GANG_SUITE=gangs-default
test-kubeflow:
	@$(MAKE) --no-print-directory test-e2e PROFILE=kubeflow LABELS='!repeats && !kueue'
test-kubeflow-2.1:
	@SIGNALBOX_STATE=$(CURDIR)/.cluster-2.1 $(MAKE) --no-print-directory test-e2e PROFILE=kubeflow-2.1

# Three control planes, one started by the other: the innermost is the manager cluster, which the suite runs on.
MANAGER ?= bundled
WORKERS ?= bundled
worker = SIGNALBOX_STATE=$(CURDIR)/.cluster-$(1) $(BIN)/cluster run --profile $(WORKERS) --
.PHONY: test-multi
test-multi: cluster-tool ## MultiKueue on a manager cluster and two workers; MANAGER=kubeflow WORKERS=kubeflow for another Trainer there
	@$(MAKE) --no-print-directory kubectl
	go test -c -o $(BIN)/e2e.test ./test/e2e
	$(call worker,worker-1) env $(call worker,worker-2) env SIGNALBOX_STATE=$(CURDIR)/.cluster-manager \
		SIGNALBOX_WORKERS=$(CURDIR)/.cluster-worker-1:$(CURDIR)/.cluster-worker-2 \
		$(BIN)/cluster run --profile $(MANAGER) -- $(BIN)/e2e.test -ginkgo.v -ginkgo.no-color -ginkgo.label-filter=multikueue \
		-ginkgo.junit-report=$(CURDIR)/junit-multi.xml $(if $(FOCUS),-ginkgo.focus='$(FOCUS)')

.PHONY: test-trainers
test-trainers: ## The suite beside every earlier Kubeflow Trainer, what repeats itself, Kueue's own features, MultiKueue and all gates
	@$(MAKE) --no-print-directory test-e2e PROFILE=kubeflow LABELS=repeats
	@$(MAKE) --no-print-directory test-e2e PROFILE=bundled SUITE=kueue LABELS=kueue
	@for version in 2.0 2.1 2.2.0 2.2.1; do $(MAKE) --no-print-directory test-e2e PROFILE=kubeflow-$$version || exit 1; done
	@for suite in test-multi test-gates; do $(MAKE) --no-print-directory $$suite || exit 1; done

# By name: Kueue's AllAlpha and AllBeta turn on client-go's gates as well, CBOR among them, with which Kueue v0.19.2 ends.
# LEFT_OUT are the gates that stay off; docs/kueue.md says why.
LEFT_OUT = MultiKueueClusterProfile DisableWaitForPodsReady SchedulerLibraryIntegration
.PHONY: test-gates
test-gates: ## The suite with every alpha and beta feature gate of Kueue on
	@SIGNALBOX_KUEUE_GATES=$$(awk '/^\t[A-Za-z]+: \{/ {name = substr($$1, 1, length($$1) - 1)} /PreRelease:/ {last[name] = $$0} \
		END {for (name in last) if (last[name] ~ /featuregate\.(Alpha|Beta)/) print name}' \
		$$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/pkg/features/kube_features.go | grep -vxF "$$(printf '%s\n' $(LEFT_OUT))" | sort | paste -sd,) \
		$(MAKE) --no-print-directory test-e2e PROFILE=bundled SUITE=gates LABELS='!migration'

# What is not named is the default release; AT_ONCE of them run side by side.
VERSIONS ?= KUBERNETES=1.34 KUBERNETES=1.35 KUBERNETES=1.37 KUEUE=0.18,JOBSET=0.10 JOBSET=0.11
AT_ONCE ?= 2
.PHONY: test-versions test-version
test-versions: cluster-tool ## The end-to-end suite on other releases of Kubernetes, Kueue and JobSet; results go to docs/compatibility.md
	@for version in $(VERSIONS); do $(BIN)/cluster build $$(tr A-Z,= 'a-z\n ' <<<"$$version" | sed 's/^/--/') || exit 1; done
	@printf '%s\n' $(VERSIONS) | xargs -P $(AT_ONCE) -I{} $(MAKE) --no-print-directory test-version RELEASE={}; failed=$$?; \
		for version in $(VERSIONS); do go run ./test/compatibility --releases $$version --record junit-$$(tr =, - <<<"$$version").xml || failed=1; done; \
		$(MAKE) --no-print-directory test-upgrade || failed=1; test $$failed = 0

# Without = and commas, which some components take for separators in their arguments.
named = $(subst $(comma),-,$(subst =,-,$(RELEASE)))
test-version:
	@mkdir -p versions && rm -f junit-$(named).xml
	@SIGNALBOX_STATE=$(CURDIR)/.cluster-$(named) $(MAKE) --no-print-directory test-e2e SUITE=$(named) $(subst $(comma), ,$(RELEASE)) >versions/$(named).log 2>&1; \
		code=$$?; echo "$(RELEASE): $$(grep -E '^(Ran|FAIL!|SUCCESS!)' versions/$(named).log | tr '\n' ' ')(versions/$(named).log)"; exit $$code

.PHONY: test-namespaces
test-namespaces: ## TrainJobs on runtimes of all kinds beside Jobs and JobSets of the same pods, in namespaces with LimitRanges, quotas, policies
	@$(MAKE) --no-print-directory test-e2e PROFILE=bundled SUITE=namespaces FOCUS='$(or $(FOCUS),Real namespaces|Claims of a runtime)'

.PHONY: test-upgrade
test-upgrade: ## Upgrade Kubernetes from 1.36 to 1.37 under gangs that run and gangs that wait
	@$(MAKE) --no-print-directory test-e2e PROFILE=bundled NEXT_KUBERNETES=1.37 LABELS=upgrade

.PHONY: bump
bump: go ## Move to another release: KUEUE=v0.20.0, JOBSET=, TRAINER= or KUBERNETES=; docs/development.md has the rest of the way
	@test/cluster/bump.sh kueue=$(KUEUE) jobset=$(JOBSET) trainer=$(TRAINER) kubernetes=$(KUBERNETES)
	go build ./... && go vet ./... && go vet -C test/cluster ./... && go vet -C test/chart ./...
	$(MAKE) --no-print-directory generate
	$(MAKE) --no-print-directory test-unit
	@echo "All compiles, and the table tests pass. docs/development.md, Moving to another release, has what is left."

.PHONY: test-unit
test-unit: go ## Table tests, and what they cover of each package; no control plane
	@rm -rf coverage/unit && mkdir -p coverage/unit
	go test -shuffle=on -cover ./api/... ./cmd/... ./examples/... ./test/compatibility ./test/junit ./test/model ./test/style ./test/suites ./test/holes $(COVERED) -args -test.gocoverdir=$(CURDIR)/coverage/unit
	@go run ./test/style -strict -cover $(CURDIR)/coverage/unit
	go test -C bench .
	go test -C hack/image ./...
	go test -C test/cluster ./...
	go test -C test/chart .
	go test -C test/prose .

.PHONY: test-chart
test-chart: cluster-tool ## Do what the documentation says with kubectl and Helm, and try the chart, on a control plane without Signalbox
	go build -o $(BIN)/signalbox ./cmd/signalbox
	@$(MAKE) --no-print-directory kubectl
	go test -C test/chart -c -o $(BIN)/chart.test ./install
	SIGNALBOX_STATE=$(CURDIR)/.cluster-chart $(RUN) chart -- $(BIN)/cluster run --profile bare -- $(BIN)/chart.test -test.v -test.timeout 8m -test.run 'TestDocumentation|TestChart'

# Before the last commit that changes what is installed: tests and documents alone would be compared with themselves.
BEFORE ?= $(shell git log -1 --format=%H -- 'cmd/**.go' 'integration/**.go' 'trainer/**.go' 'admission/**.go' 'store/**.go' 'overrides/**.go' 'podsets/**.go' 'api/**.go' config charts ':!*_test.go')~1
.PHONY: test-skew
test-skew: cluster-tool ## Upgrade from the commit before (BEFORE=COMMIT) and downgrade to it, with replicas of both side by side
	go build -o $(BIN)/signalbox ./cmd/signalbox
	go test -C test/chart -c -o $(BIN)/chart.test ./install
	@rm -rf .before && mkdir .before && git archive $(BEFORE) | tar -x -C .before
	go build -C .before -o bin/signalbox ./cmd/signalbox
	SIGNALBOX_STATE=$(CURDIR)/.cluster-skew SIGNALBOX_BEFORE=$(CURDIR)/.before $(RUN) skew -- $(BIN)/cluster run --profile bare -- $(BIN)/chart.test -test.v -test.timeout 8m -test.run TestSkew

.PHONY: kubectl
kubectl: go ## Build kubectl and Helm into bin/
	@test -x $(BIN)/kubectl || echo "Building kubectl and Helm; the first time takes minutes."
	go build -C test/chart -o $(BIN)/ ./kubectl helm.sh/helm/v3/cmd/helm

.PHONY: test-race
test-race: go ## Table tests under the race detector, five times in random order; needs a C compiler
	go test -race -shuffle=on -count=5 $(COVERED)

SUITE ?= $(PROFILE)
.PHONY: test-e2e
test-e2e: cluster-tool ## The end-to-end suite on the control plane; FOCUS=regexp for some of it
	@rm -rf coverage/e2e-$(SUITE) && mkdir -p coverage/e2e-$(SUITE)
	@echo "Building the end-to-end suite."
	go test -c -o $(BIN)/e2e.test ./test/e2e
	go build -o $(BIN)/kubectl-signalbox ./cmd/kubectl-signalbox
	SIGNALBOX_COVER=$(CURDIR)/coverage/e2e-$(SUITE) $(call SPECS,$(SUITE)) $(BIN)/cluster run --profile $(PROFILE) $(RELEASES) -- \
		$(BIN)/e2e.test -ginkgo.v -ginkgo.no-color $(if $(filter kubeflow-2%,$(PROFILE)),-ginkgo.label-filter=trainers,$(if $(LABELS),-ginkgo.label-filter='$(LABELS)')) $(if $(SKIP),-ginkgo.skip='$(SKIP)')

.PHONY: steady
steady: ROUNDS = 5
steady: suites-tool ## Run the end-to-end suite ROUNDS times while all processors are busy, and print which specs failed how often; FOCUS=regexp for some of it
	@$(BIN)/suites steady -junit junit-steady.xml -rounds $(ROUNDS) -- $(MAKE) --no-print-directory test-e2e SUITE=steady LABELS='$(or $(LABELS),!kueue)'

.PHONY: test-node
test-node: cluster-tool ## Train for real, on kubelets and containers, with everything installed by Helm (Linux, root); FOCUS=regexp for some of it
	go test -C test/cluster -tags machine ./machine
	@echo "Building the suite for real nodes."
	go test -c -o $(BIN)/node.test ./test/node
	@$(MAKE) --no-print-directory kubectl
	@for profile in $(NODE_PROFILES); do $(MAKE) --no-print-directory run-node PROFILE=$$profile || exit 1; done

NODE_PROFILES ?= node node-kubeflow
.PHONY: run-node
run-node:
	SIGNALBOX_STATE=$(CURDIR)/.cluster-node $(call SPECS,$(PROFILE)) $(BIN)/cluster run --profile $(PROFILE) -- \
		$(BIN)/node.test -ginkgo.v -ginkgo.no-color $(if $(filter node-kubeflow,$(PROFILE)),-ginkgo.label-filter=trainers)

SECONDS ?= 60
SEED ?= 1
.PHONY: chaos
chaos: cluster-tool ## Kill components, cut and stall their connections, at random for SECONDS while TrainJobs of all kinds preempt each other and hostile users send requests; SEED repeats the faults, GANGS=1 puts pods into gangs
	@echo "Building the end-to-end suite."
	go test -c -o $(BIN)/e2e.test ./test/e2e
	SIGNALBOX_CHAOS_SECONDS=$(SECONDS) SIGNALBOX_CHAOS_SEED=$(SEED) SIGNALBOX_CHAOS_GANGS=$(GANGS) $(BIN)/cluster run --relayed --profile $(PROFILE) $(RELEASES) -- \
		$(BIN)/e2e.test -ginkgo.v -ginkgo.no-color -ginkgo.label-filter=chaos -ginkgo.timeout=3h -test.timeout=0

DEPTH ?= 5
ENDS ?= 40
INPUTS ?= 100000
.PHONY: model
model: go ## Try every order of DEPTH steps of two TrainJobs and a quota for one, follow one of ENDS states to the end of all, and send INPUTS sequences of requests
	go test ./test/model -v -timeout 0 -args -depth $(DEPTH) -ends $(ENDS) -inputs $(INPUTS)

JOBS ?= 500
.PHONY: replay
replay: go ## Replay JOBS TrainJobs, and compare when each starts with what kubectl signalbox simulate --until would have said
	go test ./cmd/kubectl-signalbox/simulate -run TestReplay -v -timeout 0 -args -replay $(JOBS)

.PHONY: test-plugin
test-plugin: ## The specs of kubectl signalbox: every verb as user and admin, each cause of explain, simulate against Kueue
	@$(MAKE) --no-print-directory test-e2e PROFILE=bundled SUITE=plugin LABELS=plugin

TRAINJOBS ?= 10000
.PHONY: test-list
test-list: ## kubectl signalbox list with TRAINJOBS TrainJobs on a real API server: how long it takes, and in how many pages it reads
	@SIGNALBOX_LIST=$(TRAINJOBS) $(MAKE) --no-print-directory test-e2e PROFILE=bundled SUITE=list LABELS=list

.PHONY: holes
holes: cluster-tool ## Take one fix after the other out of a copy of the tree, and see that its specs fail and that audit finds it; ONLY=regexp for some
	@echo "Building the end-to-end suite."
	go test -c -o $(BIN)/e2e.test ./test/e2e
	go run ./test/holes $(if $(ONLY),-only '$(ONLY)')

# QUICK=1 measures the ratios alone, in minutes.
ifdef QUICK
PROFILES ?= bundled builtin
ROUNDS ?= 2
BURSTS ?= 100
LARGE ?=
WAITING ?=
DEEP ?=
endif
PROFILES ?= bundled builtin kubeflow
ROUNDS ?= 4
BURSTS ?= 100,500
LARGE ?= 1000
WAITING ?= 100,1000
DEEP ?= 100,100,10000,10000,10000
# MEMORY=1Gi is the manager's memory limit, in the place of the chart's.
LOAD = $(if $(MEMORY),SIGNALBOX_MEMORY=$(MEMORY)) $(BIN)/cluster run --profile $$profile $(RELEASES) -- $(BIN)/bench load --profile $$profile $(if $(QUEUES),--queues $(QUEUES)) --out $(CURDIR)/bench/.raw/$$profile
.PHONY: bench
bench: cluster-tool ## Measure Signalbox and its peer side by side, in turns (PROFILES, ROUNDS, BURSTS, WAITING, DEEP, LARGE; QUICK=1 for minutes); page, JSON and plots go to bench/results
	@echo "Building the benchmarks."
	@go build -C bench -o $(BIN)/bench . && rm -rf bench/.raw
	@for profile in $(PROFILES); do $(LOAD)-1.json --few $(if $(BURSTS),--bursts $(BURSTS)) || exit 1; done
ifneq ($(BURSTS),)
	@for round in $$(seq 2 $(ROUNDS)); do for profile in $(filter bundled builtin,$(PROFILES)); do $(LOAD)-$$round.json --bursts $(BURSTS) || exit 1; done; done
endif
ifneq ($(WAITING)$(DEEP),)
	@for profile in $(filter bundled,$(PROFILES)); do $(LOAD)-waiting.json --waiting $(WAITING)$(if $(WAITING),$(addprefix $(comma),$(DEEP)),$(DEEP)) || exit 1; done
endif
ifneq ($(LARGE),)
	@for profile in $(filter bundled builtin,$(PROFILES)); do $(LOAD)-large.json --bursts $(LARGE) || exit 1; done
endif
ifneq ($(WAITING),)
	@for profile in $(filter-out bundled,$(PROFILES)); do $(LOAD)-waiting.json --waiting $(WAITING) || exit 1; done
endif
	@$(BIN)/bench report $(CURDIR)/bench/.raw --out $(CURDIR)/bench/results --suffix '$(if $(KUBERNETES),-kubernetes-$(KUBERNETES))$(if $(QUICK),-quick)'

.PHONY: bench-profile
bench-profile: BURSTS = 500
bench-profile: DEEP = 10000
bench-profile: cluster-tool ## Take profiles of Signalbox, Kueue and the API server into bench/.raw/profiles: in a burst of BURSTS, and where DEEP TrainJobs wait
	@echo "Building the benchmarks."
	@go build -C bench -o $(BIN)/bench . && rm -rf bench/.raw/profiles
	@profile=bundled; $(LOAD)-profiled.json --bursts $(BURSTS) $(if $(DEEP),--waiting $(DEEP)) --pprof $(CURDIR)/bench/.raw/profiles
	@ls bench/.raw/profiles

CHURN_WAITING ?= 1000
CHURN_QUEUES ?= 100
.PHONY: bench-churn
bench-churn: cluster-tool ## Measure preemption storms and floods of edits while CHURN_WAITING TrainJobs wait in CHURN_QUEUES LocalQueues, and what of them stays in the manager; HOURS=2.4 for a day at ten times the speed
	@echo "Building the benchmarks."
	@go build -C bench -o $(BIN)/bench .
	@$(BIN)/cluster run --profile bundled $(RELEASES) -- $(BIN)/bench churn --out $(CURDIR)/bench/results --waiting $(CHURN_WAITING) --queues $(CHURN_QUEUES) $(if $(HOURS),--for $(HOURS)h)

STORM ?= 1000
.PHONY: bench-storm
bench-storm: cluster-tool ## Measure what it takes that STORM running TrainJobs are preempted at once and run again, with Signalbox and its peer (PROFILES)
	@echo "Building the benchmarks."
	@go build -C bench -o $(BIN)/bench .
	@for profile in $(filter bundled builtin,$(PROFILES)); do $(BIN)/cluster run --profile $$profile $(RELEASES) -- $(BIN)/bench storm --profile $$profile --out $(CURDIR)/bench/results --jobs $(STORM) || exit 1; done

FOREIGN ?= 1000
.PHONY: bench-foreign
bench-foreign: cluster-tool ## Measure what FOREIGN JobSets and Jobs cost Signalbox that Kueue's own integrations queue, and 10,000 JobSets that wait
	@go build -C bench -o $(BIN)/bench . && $(BIN)/cluster run --profile bundled $(RELEASES) -- $(BIN)/bench foreign --out $(CURDIR)/bench/results --jobs $(FOREIGN)

.PHONY: bench-large
bench-large: cluster-tool ## Measure TrainJobs of thousands of pods, with topology, as gangs, with MPI and with many ReplicatedJobs
	@echo "Building the benchmarks."
	@go build -C bench -o $(BIN)/bench .
	@$(BIN)/cluster run --profile bundled $(RELEASES) -- $(BIN)/bench large --out $(CURDIR)/bench/results

.PHONY: bench-hostile
bench-hostile: ROUNDS = 3
bench-hostile: cluster-tool ## Measure, on real nodes, the starts of honest TrainJobs while hostile requests of each kind are sent, and the managers' memory (Linux, root); ROUNDS, ONLY=regexp for some kinds
	@echo "Building the benchmarks."
	@go build -C bench -o $(BIN)/bench .
	@$(BIN)/cluster run --profile node -- $(BIN)/bench hostile --out $(CURDIR)/bench/results --rounds $(ROUNDS) $(if $(ONLY),--only '$(ONLY)')

.PHONY: bench-compare
bench-compare: go ## Name what got worse from page BEFORE_PAGE to AFTER_PAGE (JSON of bench/results) by more than noise
	@test -n "$(BEFORE_PAGE)" && test -n "$(AFTER_PAGE)" || { echo "Name two pages: make bench-compare BEFORE_PAGE=bench/results/A.json AFTER_PAGE=bench/results/B.json"; exit 1; }
	@go run -C bench . compare $(abspath $(BEFORE_PAGE)) $(abspath $(AFTER_PAGE))

LOG ?= .cluster/log/audit.log
.PHONY: trace
trace: go ## Lay out the way of TrainJobs from submission to a running pod by an audit log: LOG=.cluster/log/audit.log
	@go run -C bench . trace $(abspath $(LOG))

.PHONY: bench-gangs
bench-gangs: cluster-tool ## Measure what gang scheduling costs
	@echo "Building the benchmarks."
	@go build -C bench -o $(BIN)/bench .
	@$(BIN)/cluster run --profile bundled -- $(BIN)/bench gangs --out $(CURDIR)/bench/results

SINCE ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null)
COUNT ?= 6
MICRO = go test -run XXX -bench . -benchmem -count $(COUNT) ./review ./overrides ./podsets ./admission ./trainer
.PHONY: bench-micro
bench-micro: go ## Time and allocations of what is decided, and by benchstat what has changed since SINCE (default: the last release)
	@mkdir -p bench/.micro && $(MICRO) | tee bench/.micro/now.txt
	@test -n "$(SINCE)" || echo "There is no release to compare with; name a commit: make bench-micro SINCE=COMMIT"
	@test -z "$(SINCE)" || { rm -rf bench/.micro/since && git worktree prune && git worktree add --detach bench/.micro/since $(SINCE) && echo "Now the same of $(SINCE)." && \
		{ (cd bench/.micro/since && $(MICRO)) | tee bench/.micro/since.txt; git worktree remove --force bench/.micro/since; } && \
		$(TOOL) benchstat bench/.micro/since.txt bench/.micro/now.txt; }

PROMETHEUS ?= prometheus
.PHONY: dashboard
dashboard: cluster-tool ## Ask a real Prometheus every query of dashboard and alerts during the demo, and draw docs/dashboard.png
	@echo "Building the demo and what draws."
	@go build -o $(BIN)/demo ./examples/demo && go build -C bench -o $(BIN)/dashboard ./dashboard
	@$(BIN)/cluster run --profile bundled -- $(BIN)/dashboard --prometheus $(PROMETHEUS) --demo $(BIN)/demo

.PHONY: picture
picture: cluster-tool kubectl ## Draw docs/run.svg, the picture of the README: kubectl get trainjobs -w during a run with a preemption
	@go build -o $(BIN)/picture ./examples/picture
	@$(BIN)/cluster run --profile bundled -- $(BIN)/picture --kubectl $(BIN)/kubectl --out docs/run.svg

FUZZTIME ?= 10m
.PHONY: fuzz
fuzz: go ## Run every fuzz target for FUZZTIME (default 10m); findings go to testdata/fuzz
	@for target in $$(git grep -oE '^func Fuzz\w+' -- '*_test.go' | sed -E 's,/[^/]*:func ,/,'); do \
		echo "$$target"; go test ./$${target%/*} -run XXX -fuzz "^$${target##*/}$$" -fuzztime $(FUZZTIME) || exit 1; done

##@ Release

# Of a commit: the same one gives the same bytes.
VERSION ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null || echo v0.1.0-dev)
COMMIT = $(shell git rev-parse HEAD)$(if $(shell git status --porcelain),-dirty)
DATE = $(shell TZ=UTC git show -s --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)
STAMPED = go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)'

.PHONY: release
release: go ## Leave binaries, chart, manifests, checksums and SBOMs of VERSION under dist/
	@rm -rf dist && mkdir dist
	@for platform in linux/amd64 linux/arm64; do echo "Building signalbox for $$platform."; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} $(STAMPED) -o dist/signalbox-$${platform/\//-} ./cmd/signalbox || exit 1; done
	@for platform in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64; do echo "Building kubectl-signalbox for $$platform."; \
		suffix=; [ $${platform%/*} = windows ] && suffix=.exe; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} $(STAMPED) -o dist/kubectl-signalbox-$${platform/\//-}$$suffix ./cmd/kubectl-signalbox || exit 1; done
	@go run -C test/chart ./release $(CURDIR) $(CURDIR)/dist $(VERSION) $(DATE)
	@cat dist/SHA256SUMS

.PHONY: image
image: go ## Build the image, without an engine: an OCI layout and archives for docker load in dist/; PUSH=REGISTRY/NAME pushes it as well
	@mkdir -p dist
	@for architecture in amd64 arm64; do echo "Building signalbox for linux/$$architecture."; \
		GOOS=linux GOARCH=$$architecture $(STAMPED) -o dist/signalbox-linux-$$architecture ./cmd/signalbox || exit 1; done
	@go run -C hack/image ./build --dist $(CURDIR)/dist --version $(VERSION) --revision $(COMMIT) --date $(DATE) $(if $(PUSH),--push $(PUSH))

##@ Develop

# What the site has beside this version: SITE_VERSIONS="v0.2.0 v0.1.0 main".
SITE_VERSION ?= main
SITE_VERSIONS ?= $(SITE_VERSION)
.PHONY: docs
docs: go ## Check links and prose, and build the site of the documentation into dist/site (needs Node.js 20 and npm); EXTERNAL=1 requests links to other sites too
	@go run -C test/prose . $(if $(EXTERNAL),-external) $(CURDIR)
	@command -v npm >/dev/null || { echo "There is no npm here. Install Node.js 20 or later, with npm, and try again."; exit 1; }
	@npm ci --prefix hack/site --silent
	@SITE_VERSION='$(SITE_VERSION)' SITE_VERSIONS='$(SITE_VERSIONS)' npm run build --prefix hack/site --silent
	@echo "The site of $(SITE_VERSION) is in dist/site/$(SITE_VERSION)."

.PHONY: generate
generate: go ## Write what is generated: CRDs, deep copies, RBAC, webhook configurations, the chart's copies, the reference
	go run -modfile=$(CURDIR)/go.tools.mod config/crdgen/main.go config/crd
	$(TOOL) controller-gen object paths=./api/trainer/...
	$(TOOL) controller-gen rbac:roleName=signalbox-manager paths=./integration output:rbac:dir=config/rbac
	$(TOOL) controller-gen webhook paths=./integration output:webhook:dir=config/webhook
	$(TOOL) controller-gen rbac:roleName=signalbox-trainer paths=./trainer output:rbac:dir=config/rbac/trainer
	$(TOOL) controller-gen webhook paths=./trainer output:webhook:dir=config/webhook/trainer
	go run -C test/chart ./generate $(CURDIR)
	go run -modfile=$(CURDIR)/go.tools.mod config/refgen/main.go docs/reference.md
	go run -modfile=$(CURDIR)/go.tools.mod config/apigen/main.go config/crd docs/api.md

.PHONY: style
style: go ## Print how far the product keeps to the bounds of docs/development.md; make test-unit judges coverage too
	@go run ./test/style -strict

MODULES = . bench hack/image test/cluster test/chart test/prose
.PHONY: lint
lint: go ## gofmt, go vet, golangci-lint, and the bounds of docs/development.md on code and prose; the first build of golangci-lint takes minutes
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "Not gofmt clean:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	@for module in $(MODULES); do echo "go vet of $$module"; go vet -C $$module ./... || exit 1; done
	@go run ./test/style -strict
	@go run -C test/prose . $(CURDIR)
	@test -x $(BIN)/golangci-lint || echo "Building golangci-lint; the first time takes minutes."
	@go build -modfile=go.lint.mod -o $(BIN)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@echo "golangci-lint of the product" && $(BIN)/golangci-lint run ./...

VULNDB ?= https://vuln.go.dev
.PHONY: vulncheck
vulncheck: go ## Compare what is linked with Go's vulnerability database, or a copy of it: VULNDB=URL
	@out=$$($(TOOL) govulncheck -db $(VULNDB) ./... 2>&1); code=$$?; echo "$$out"; \
		if [ $$code -ne 0 ] && grep -q "fetching vulnerabilities" <<<"$$out"; then echo "The database can't be reached from here, so nothing was compared. Name a copy of it: make vulncheck VULNDB=URL"; exit 0; fi; exit $$code

.PHONY: sources
sources: ## Fail when something that was built is committed: a file that is neither text nor a picture
	@built=$$(git diff --cached --numstat $$(git hash-object -t tree /dev/null) -- . ':!*.png' | sed -nE 's/^-\t-\t//p'); test -z "$$built" || { echo "Built files are committed; remove them, and let .gitignore name them:"; echo "$$built"; exit 1; }

.PHONY: verify
verify: sources generate lint ## Fail when something generated is stale, or something built is committed
	@git diff --exit-code -- config api charts docs/reference.md docs/api.md && test -z "$$(git ls-files --others --exclude-standard -- config api charts docs/reference.md docs/api.md)" || { echo "Generated files are stale: commit what make generate wrote."; exit 1; }

.PHONY: clean
clean: ## Remove what builds and tests left; the control plane's build cache stays
	rm -rf bin dist coverage junit*.xml beside.log builds.log suites versions .before .cluster*
