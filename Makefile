SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# Everything is built without cgo, so that vet, lint, tests and programs share what is compiled; but for runc,
# which test/cluster builds.
export CGO_ENABLED := 0
BIN := $(CURDIR)/bin
TOOLS := -modfile=go.tools.mod

# What the control plane is of: a profile; releases, such as KUBERNETES=1.37; and GATES and APIS of Kubernetes.
PROFILE ?= bundled
RELEASES = $(foreach r,KUBERNETES KUEUE JOBSET NEXT_KUBERNETES GATES APIS,$(if $($(r)),--$(subst next_,next-,$(shell echo $(r) | tr A-Z a-z)) $($(r))))
# NODES=real needs Linux and root.
NODES ?= simulated
REAL := $(filter real,$(NODES))
state = SIGNALBOX_STATE=$(CURDIR)/.cluster-$(1)
up = $(BIN)/cluster run --profile $(1) $(RELEASES) --
# test/suites records what a suite does. RETRY=1 runs failed specs once more, on a control plane of their own.
RUN = $(BIN)/suites run -name
SPECS = $(RUN) $(1) -specs $(if $(RETRY),-retry) $(if $(FOCUS),-focus '$(FOCUS)') -- $(call up,$(2))
GINKGO := -ginkgo.v -ginkgo.no-color

# All but the patterns.
.PHONY: $(shell sed -nE 's/^([a-z][a-z0-9 -]*):( .*)?$$/\1/p' Makefile)

help:
	@grep -hE '^[a-z0-9%-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

go:
	@go version | grep -qE 'go1\.(2[6-9]|[3-9][0-9])' || { echo "Install Go 1.26 or later, and try again."; exit 1; }

suites-tool: go
	@mkdir -p $(BIN) && go build -o $(BIN)/suites ./test/suites

cluster-tool: suites-tool
	@test -x $(BIN)/cluster || echo "Building the program that runs the control plane; a minute the first time."
	@go build -C test/cluster -o $(BIN)/cluster .

e2e-tool: cluster-tool
	go test -c -o $(BIN)/e2e.test ./test/e2e
	go build -o $(BIN)/kubectl-signalbox ./cmd/kubectl-signalbox

chart-tool: cluster-tool
	go build -o $(BIN)/signalbox ./cmd/signalbox
	go test -C test/chart -c -o $(BIN)/chart.test ./install

demo-tool: cluster-tool
	@test -x $(BIN)/demo || echo "Building the demo; a minute the first time."
	@go build -o $(BIN)/ ./examples/demo $(if $(KEEP),./cmd/kubectl-signalbox)

##@ Use

demo: demo-tool ## Run the main job on a real control plane; KEEP=1 leaves it up; NODES=real trains for real
	@$(BIN)/cluster $(if $(KEEP),up,run) --profile $(if $(REAL),node,$(PROFILE)) $(RELEASES) $(if $(KEEP),&&,--) \
		$(BIN)/demo $(if $(REAL),--real) $(if $(KEEP),--cluster $(CURDIR)/.cluster --keep)

cluster: cluster-tool ## Start a control plane in the background: PROFILE=kubeflow, KUBERNETES=1.37, KUEUE=, JOBSET=
	@$(BIN)/cluster up --profile $(PROFILE) $(RELEASES)

cluster-down: cluster-tool ## Stop it
	@$(BIN)/cluster down

multi: cluster-tool ## Start a manager cluster and two workers in the background, for docs/multikueue.md
	@test/cluster/multi.sh up

multi-down: cluster-tool ## Stop them
	@test/cluster/multi.sh down

##@ Test

COVERED := $(addsuffix /...,./overrides ./podsets ./admission ./store ./review ./integration ./trainer) ./cmd/signalbox/audit \
	./cmd/kubectl-signalbox/explain ./cmd/kubectl-signalbox/simulate
test-unit: go ## Table tests, and what they cover of each package; no control plane
	@rm -rf coverage/unit && mkdir -p coverage/unit
	go test -shuffle=on -cover ./api/... ./cmd/... ./examples/... $(addprefix ./test/,compatibility junit model release style suites holes) \
		$(COVERED) -args -test.gocoverdir=$(CURDIR)/coverage/unit
	@go run ./test/style -strict -cover $(CURDIR)/coverage/unit
	go test -C bench .
	go test -C hack/image ./...
	go test -C test/cluster ./...
	go test -C test/chart .
	go test -C test/prose .

# The bundled suite runs on BUNDLED, such as KUBERNETES=1.37.
BUNDLED ?=
build = $(MAKE) build-cluster PROFILE=
test: suites-tool ## All: table tests, the suite with each Trainer, the chart, chaos; NODES=real for test-node too
	@rm -rf coverage/e2e-* junit*.xml $(if $(RETRY),,suites) # .ci/run has steps of its own in suites
	@$(RUN) test-unit -- $(MAKE) test-unit
ifneq ($(REAL),)
	@$(build)bundled $(BUNDLED) && $(build)bundled
	@$(BIN)/suites beside -build '$(build)node' \
		-other '$(MAKE) test-chart test-skew test-kubeflow-2.1 test-gangs $(if $(BUNDLED),test-gangs-new) test-page test-waits' \
		-- $(MAKE) test-bundled
	@$(BIN)/suites beside -other '$(MAKE) test-node' -- $(MAKE) test-kubeflow
else
	@$(MAKE) test-bundled test-kubeflow test-kubeflow-2.1 test-chart
endif
	@$(MAKE) chaos PROFILE=bundled SECONDS=60
	@echo "Statements covered by the unit tests and the end-to-end suite together:"
	@go tool covdata percent -i $$(ls -d coverage/* | paste -sd,) | grep -E 'signalbox/(overrides|podsets|admission|store|integration|trainer)\b'
	@$(BIN)/suites report

build-cluster: cluster-tool
	@$(RUN) 'build $(PROFILE) $(strip $(RELEASES))' -- $(BIN)/cluster build --profile $(PROFILE) $(RELEASES)

SUITE ?= $(PROFILE)
LABELS ?= $(if $(filter kubeflow-2%,$(PROFILE)),trainers)
test-e2e: e2e-tool ## The end-to-end suite on one control plane; FOCUS=regexp
	@rm -rf coverage/e2e-$(SUITE) && mkdir -p coverage/e2e-$(SUITE)
	SIGNALBOX_COVER=$(CURDIR)/coverage/e2e-$(SUITE) $(call SPECS,$(SUITE),$(PROFILE)) $(BIN)/e2e.test $(GINKGO) \
		$(if $(LABELS),-ginkgo.label-filter='$(LABELS)') $(if $(SKIP),-ginkgo.skip='$(SKIP)')

# make test-NAME runs make test-e2e with these arguments.
GANG_SPECS := Gangs|PodGroup API
suite.bundled = PROFILE=bundled LABELS='!kueue$(if $(REAL), && !waits)' $(if $(REAL),SKIP='$(GANG_SPECS)') $(BUNDLED)
suite.waits = PROFILE=bundled LABELS=waits $(call state,waits) $(BUNDLED)
# What repeats for minutes runs on BUNDLED, and with GANG_LABELS= on the other release too.
GANG_LABELS ?= !repeats
suite.gangs = PROFILE=bundled FOCUS='$(GANG_SPECS)' LABELS='$(GANG_LABELS)' $(call state,gangs)
suite.gangs-new = $(suite.gangs) LABELS= $(BUNDLED)
suite.kubeflow = PROFILE=kubeflow LABELS='!repeats && !kueue'
suite.kubeflow-2.1 = PROFILE=kubeflow-2.1 $(call state,2.1)
suite.repeats = PROFILE=kubeflow LABELS=repeats
suite.kueue = PROFILE=bundled LABELS=kueue
suite.gates = PROFILE=bundled LABELS='!migration' SIGNALBOX_KUEUE_GATES=$$(test/gates.sh)
suite.upgrade = PROFILE=bundled LABELS=upgrade NEXT_KUBERNETES=1.37
suite.namespaces = PROFILE=bundled FOCUS='$(or $(FOCUS),Real namespaces|Claims of a runtime)'
suite.plugin = PROFILE=bundled LABELS=plugin
suite.page = PROFILE=bundled LABELS=page SIGNALBOX_PAGE=1 $(call state,page)
suite.list = PROFILE=bundled LABELS=list SIGNALBOX_LIST=$(or $(TRAINJOBS),10000)
test-%: ## chart, skew, multi, trainers, versions, race; of the suite: plugin, page, list, …
	@$(MAKE) test-e2e SUITE=$* $(or $(suite.$*),$(error There is no suite $*))

CHART_TEST := $(BIN)/chart.test -test.v -test.timeout 8m -test.run
test-chart: chart-tool kubectl
	$(call state,chart) $(RUN) chart -- $(call up,bare) $(CHART_TEST) 'TestDocumentation|TestChart'

# Before the last commit that changes what is installed, or tests would be compared with themselves.
BEFORE ?= $(shell git log -1 --format=%H -- $(addsuffix /**.go',$(addprefix ',cmd integration trainer admission store overrides podsets api)) config charts ':!*_test.go')~1
test-skew: chart-tool
	@rm -rf .before && mkdir .before && git archive $(BEFORE) | tar -x -C .before
	go build -C .before -o bin/signalbox ./cmd/signalbox
	$(call state,skew) SIGNALBOX_BEFORE=$(CURDIR)/.before $(RUN) skew -- $(call up,bare) $(CHART_TEST) TestSkew

# Three control planes, one started by the other: the suite runs on the innermost, the manager cluster.
WORKERS ?= bundled
test-multi: e2e-tool kubectl
	$(call state,worker-1) $(call up,$(WORKERS)) env $(call state,worker-2) $(call up,$(WORKERS)) env $(call state,manager) \
		SIGNALBOX_WORKERS=$(CURDIR)/.cluster-worker-1:$(CURDIR)/.cluster-worker-2 $(call up,$(or $(MANAGER),bundled)) $(BIN)/e2e.test $(GINKGO) \
		-ginkgo.label-filter=multikueue -ginkgo.junit-report=$(CURDIR)/junit-multi.xml $(if $(FOCUS),-ginkgo.focus='$(FOCUS)')

test-trainers:
	@$(MAKE) test-repeats test-kueue
	@for version in 2.0 2.1 2.2.0 2.2.1; do $(MAKE) test-e2e PROFILE=kubeflow-$$version || exit 1; done
	@$(MAKE) test-multi test-gates

VERSIONS ?= KUBERNETES=1.34 KUBERNETES=1.35 KUBERNETES=1.37 KUEUE=0.18,JOBSET=0.10 JOBSET=0.11
test-versions: cluster-tool
	@MAKE='$(MAKE)' test/compatibility/versions.sh $(VERSIONS); failed=$$?; $(MAKE) test-upgrade && exit $$failed

test-race: go
	go test -race -shuffle=on -count=5 $(COVERED)

NODE_PROFILES ?= node node-kubeflow
test-node: cluster-tool kubectl ## Train for real, on kubelets and containers, installed by Helm (Linux, root); FOCUS=
	go test -C test/cluster -tags machine ./machine
	go test -c -o $(BIN)/node.test ./test/node
	@$(MAKE) $(NODE_PROFILES:%=run-%)

run-%:
	$(call state,node) $(call SPECS,$*,$*) $(BIN)/node.test $(GINKGO) $(if $(filter node-kubeflow,$*),-ginkgo.label-filter=trainers)

##@ Find faults

chaos: e2e-tool ## Break components and connections for SECONDS while TrainJobs preempt each other; SEED= GANGS=
	SIGNALBOX_CHAOS_SECONDS=$(or $(SECONDS),60) SIGNALBOX_CHAOS_SEED=$(or $(SEED),1) SIGNALBOX_CHAOS_GANGS=$(GANGS) \
		$(RUN) chaos -specs -- $(BIN)/cluster run --relayed --profile $(PROFILE) $(RELEASES) -- \
		$(BIN)/e2e.test $(GINKGO) -ginkgo.label-filter=chaos -ginkgo.timeout=3h -test.timeout=0

model: go ## Try every order of DEPTH steps; follow one of ENDS states to the end; send INPUTS
	go test ./test/model -v -timeout 0 -args -depth $(or $(DEPTH),5) -ends $(or $(ENDS),40) -inputs $(or $(INPUTS),100000)

steady: suites-tool e2e-tool ## Run the suite ROUNDS times, AT_ONCE at once: which specs failed
	@$(BIN)/suites steady -junit junit-steady-{round}.xml -rounds $(or $(ROUNDS),5) -at-once $(or $(AT_ONCE),1) \
		-- $(MAKE) test-e2e SUITE=steady-{round} SIGNALBOX_STATE=$(CURDIR)/.cluster-steady-{round} LABELS='$(or $(LABELS),!kueue)'

holes: e2e-tool ## Take each fix out of a copy of the tree: its specs fail; ONLY=regexp
	go run ./test/holes $(if $(ONLY),-only '$(ONLY)')

fuzz: go ## Run every fuzz target for FUZZTIME (10m); findings go to testdata/fuzz
	@for target in $$(git grep -oE '^func Fuzz\w+' -- '*_test.go' | sed -E 's,/[^/]*:func ,/,'); do echo "$$target"; \
		go test ./$${target%/*} -run XXX -fuzz "^$${target##*/}$$" -fuzztime $(or $(FUZZTIME),10m) || exit 1; done

vulncheck: go ## Compare what is linked with Go's vulnerability database, or VULNDB=URL; VEX=FILE writes OpenVEX
	@VEX=$(VEX) hack/vulncheck.sh $(VULNDB)

bench: $(if $(filter compare trace micro replay,$(WHAT)),go,cluster-tool) ## Measure WHAT=load (default; QUICK=1), churn, storm, lost, …
	@RELEASES='$(RELEASES)' bench/run.sh

bench-%: ; @$(MAKE) bench WHAT=$*

##@ Release

release: go ## Leave binaries, chart, manifests and SBOMs of VERSION in dist/
	@hack/release.sh release

image: go ## Build the images into dist/; PUSH=REGISTRY/NAME pushes them
	@hack/release.sh image

release-rehearsal: cluster-tool kubectl ## Rehearse the release of VERSION up to the button (Linux, root)
	@BEFORE='$(BEFORE)' VERSION=$(or $(VERSION),v0.1.0-rc.1) PLATFORMS='$(PLATFORMS)' $(RUN) rehearsal -- test/release/rehearse.sh

first-hour: cluster-tool kubectl ## Do what docs/quick-start.md and install.md say to those who have a cluster (Linux, root)
	@go build -C hack/image -o $(BIN)/ ./registry
	@$(call state,first-hour) $(RUN) first-hour -- $(call up,node-bare) test/release/first-hour.sh bundled
	@$(call state,first-hour) $(RUN) first-hour-kubeflow -- $(call up,node-kubeflow-bare) test/release/first-hour.sh kubeflow

##@ Develop

kubectl: go ## Build kubectl and Helm into bin/
	@test -x $(BIN)/kubectl || echo "Building kubectl and Helm; minutes the first time."
	go build -C test/chart -o $(BIN)/ ./kubectl helm.sh/helm/v3/cmd/helm

picture: cluster-tool kubectl ## Draw the README's picture and the page's (needs Chromium)
	@go build -o $(BIN)/ ./examples/picture ./cmd/kubectl-signalbox
	@$(call up,bundled) $(BIN)/picture --kubectl $(BIN)/kubectl --plugin $(BIN)/kubectl-signalbox

docs: go ## Check links and prose, build the site into dist/site (needs npm); EXTERNAL=1 requests others too
	@go run -C test/prose . $(if $(EXTERNAL),-external) $(CURDIR)
	@command -v npm >/dev/null || { echo "Install Node.js 20 or later, with npm, and try again."; exit 1; }
	@npm ci --prefix hack/site --silent && npm ci --prefix hack/page --silent
	@cmp hack/page/node_modules/htmx.org/dist/htmx.min.js cmd/kubectl-signalbox/page/assets/htmx.min.js
	@npm run build --prefix hack/site --silent
	@echo "The site is in dist/site/$(or $(SITE_VERSION),main)."

GENERATED := config api charts NOTICE docs/reference.md docs/api.md
CONTROLLER_GEN := go tool $(TOOLS) controller-gen
generate: go ## Write what is generated: CRDs, RBAC, the reference, …
	go run $(TOOLS) config/crdgen/main.go config/crd
	$(CONTROLLER_GEN) object paths=./api/trainer/...
	$(CONTROLLER_GEN) object crd paths=./api/usage/... output:crd:dir=config/crd
	$(CONTROLLER_GEN) rbac:roleName=signalbox-manager webhook paths=./integration/... output:rbac:dir=config/rbac output:webhook:dir=config/webhook
	$(CONTROLLER_GEN) rbac:roleName=signalbox-trainer paths=./trainer output:rbac:dir=config/rbac/trainer
	$(CONTROLLER_GEN) webhook paths=./trainer/webhook output:webhook:dir=config/webhook/trainer
	go run -C test/chart ./generate $(CURDIR)
	go run -C hack/image ./notice $(CURDIR)
	go run $(TOOLS) config/refgen/main.go docs/reference.md
	go run $(TOOLS) config/apigen/main.go config/crd docs/api.md

style: go ## Print how far code and prose keep to the bounds of docs/development.md
	@go run ./test/style -strict
	@go run -C test/prose . $(CURDIR)

lint: style ## The same, gofmt, go vet and golangci-lint, whose first build takes minutes
	@test -z "$$(gofmt -l $$(git ls-files '*.go') | tee /dev/stderr)" || { echo "These are not gofmt clean."; exit 1; }
	@for module in . bench hack/image test/cluster test/chart test/prose; do echo "go vet of $$module"; go vet -C $$module ./... || exit 1; done
	@test -x $(BIN)/golangci-lint || echo "Building golangci-lint; minutes the first time."
	@go build -modfile=go.lint.mod -o $(BIN)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@go tool -modfile=go.release.mod actionlint -shellcheck= -pyflakes=
	@echo "golangci-lint of the product" && $(BIN)/golangci-lint run ./...

verify: generate lint ## Before the last commit: generate and lint; fail when that is stale
	@git diff --exit-code -- $(GENERATED) && test -z "$$(git ls-files --others --exclude-standard -- $(GENERATED))" || { echo "Generated files are stale: commit what make generate wrote."; exit 1; }

bump: go ## Move to another release: KUEUE=v0.20.0, JOBSET=, TRAINER= or KUBERNETES=; see docs/development.md
	@test/cluster/bump.sh kueue=$(KUEUE) jobset=$(JOBSET) trainer=$(TRAINER) kubernetes=$(KUBERNETES)
	$(MAKE) generate test-unit
	@echo "All compiles, and the table tests pass. docs/development.md, Moving to another release, has what is left."

clean: ## Remove what builds and tests left, but for the build cache
	rm -rf bin dist coverage junit*.xml suites versions .before .cluster*
