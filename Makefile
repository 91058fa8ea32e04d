# Every target of this file is what CI runs, too. `make` alone lists them.

SHELL         := /bin/bash
.SHELLFLAGS   := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS     += --no-print-directory
.NOTPARALLEL:

NAME   := istio-pod-network-controller
BINARY := build/$(NAME)
CHART  := chart/$(NAME)
CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/$(NAME)

# Tools are linked once for every state of the go.sum that pins them; a warm run starts them without asking the go command.
pinned         = $(CACHE)/tools/$(firstword $(shell sha256sum < $(1)/go.sum))
GOLANGCI_LINT  := $(call pinned,hack/tools/programs)/golangci-lint
GOVULNCHECK    := $(call pinned,hack/tools/programs)/govulncheck
HELM           := $(call pinned,hack/cluster/programs)/helm
CONTROLLER_GEN := $(call pinned,hack/tools/programs)/controller-gen
CYCLONEDX      := $(call pinned,hack/tools/programs)/cyclonedx-gomod
export HELM

IMAGE := localhost/$(NAME):$(shell awk '$$1 == "appVersion:" { gsub("\"", "", $$2); print $$2 }' $(CHART)/Chart.yaml)

# The small programs in the agent's image.
SMALL := $(foreach program,cni probe wait,--file $(CURDIR)/build/istio-pod-network-$(program):/istio-pod-network-$(program))

KC := hack/cluster/kc

# The modules that the linter walks. Modules without Go code (pins of tools, pins of the cluster's programs) are not among them, nor is test/istio,
# for which the linter would compile Istio once more.
LINTED  := $(dir $(wildcard go.mod cmd/kubectl-pod_network/go.mod hack/go.mod test/e2e/go.mod))
MODULES  = $(dir $(shell git ls-files --cached --others --exclude-standard 'go.mod' '*/go.mod'))

# A kernel test that cannot run is skipped on a laptop and is a failure in CI.
ifdef CI
export REQUIRE_KERNEL := 1
endif

FUZZTIME ?= 20s

##@ Everyday

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# gRPC's page of traces calls methods by names that only its templates know, for which the linker keeps all methods of the program.
LEAN := -tags=grpcnotrace

# Compiles what is neither released nor measured.
QUICK_GO := hack/quick.sh go

.PHONY: build
build: ## Build the agent and its small programs, static, to build/. QUICK=1: compiled as the tests and the cluster's programs are, which takes minutes less
	CGO_ENABLED=0 GOOS=linux $(if $(QUICK),hack/quick.sh) hack/build.sh $(LEAN) -trimpath -buildvcs=auto -ldflags='-s -w' -o build/ . ./cmd/...

.PHONY: plugin
plugin: ## Build the plugin of kubectl for this machine to build/
	CGO_ENABLED=0 go -C cmd/kubectl-pod_network build $(LEAN) -trimpath -buildvcs=auto -ldflags='-s -w' -o $(CURDIR)/build/ .

# Each target that needs more than Go first checks the machine, in less than a second, and installs what is missing.
.PHONY: test
test: test-preflight $(if $(PKG),test-packages,test-go test-kit test-chart) ## All tests except the end-to-end ones; as root also those that program the kernel. RACE=1: with the race detector where goroutines start. PKG='./controllers/... ./iptables': only those packages

.PHONY: test-preflight
test-preflight:
	@hack/preflight.sh test kernel $(if $(RACE),race)

.PHONY: test-go
test-go:
	@hack/test.sh go

.PHONY: test-packages
test-packages:
	@hack/test.sh packages $(PKG)

.PHONY: test-kit
test-kit:
	@hack/test.sh kit

.PHONY: test-kernel
test-kernel: export REQUIRE_KERNEL := 1
test-kernel: ## Run the tests that program real network namespaces; fail where they cannot run (needs root)
	@hack/preflight.sh test kernel race
	CGO_ENABLED=1 go test -race -count=1 ./internal/netns/... ./test/kerneltest/... ./iptables/...

.PHONY: test-kernels
test-kernels: ## Run those tests on Debian's kernels KERNELS (5.10 6.1 6.12, on request also s390x and arm64) in virtual machines, of the packages PACKAGES (all), tests TESTS (all), with APPEND on the kernel's command line. ACCEL=kvm where there is KVM
	@hack/preflight.sh test kernel kernels
	nice $(QUICK_GO) -C hack run ./kernels $(if $(PACKAGES),-packages '$(PACKAGES)') $(if $(TESTS),-tests '$(TESTS)') $(if $(APPEND),-append '$(APPEND)') $(CURDIR) $(or $(KERNELS),5.10 6.1 6.12)

.PHONY: test-runtimes
test-runtimes: ## Run the tests with real container runtimes, of containerd also VERSIONS (2.2.5, which has a known fault, and 1.7.35); needs root
	@REQUIRE_KERNEL=1 hack/preflight.sh build kernel images
	@hack/test.sh runtimes $(VERSIONS)

.PHONY: test-critest
test-critest: ## Run critest, the tests that container runtimes have to pass, against containerd and CRI-O with the agent's NRI plugin; needs root
	@REQUIRE_KERNEL=1 hack/preflight.sh build kernel images crio
	@hack/test.sh critest

.PHONY: test-istio
test-istio: ## Pods as real Istio injects them, before and after a migration; real Istio in a cluster is a round of `make e2e`
	hack/istio.sh test

.PHONY: test-chart
test-chart: QUICK := 1
test-chart: build ## The chart's golden, schema, flag and admission tests
	@hack/test.sh chart

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (20s)
	hack/tools/fuzz.sh $(FUZZTIME)

.PHONY: mutate
mutate: ## Change the code that makes rules in one place at a time, and fail if no test notices it that needs no kernel (at most 15 minutes)
	nice $(QUICK_GO) -C hack run ./tools/mutate $(CURDIR)

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run the linters over every module with Go code
	@status=0; for module in $(LINTED); do echo "lint $$module"; \
	  (cd $$module && GOGC=400 $(CURDIR)/hack/quick.sh $(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yaml ./...) || status=1; done; exit $$status

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the code as the linter wants it
	@for module in $(LINTED); do (cd $$module && $(CURDIR)/hack/quick.sh $(GOLANGCI_LINT) fmt --config $(CURDIR)/.golangci.yaml ./...); done

.PHONY: vuln
vuln: $(GOVULNCHECK) ## Look for known vulnerabilities in what the product links, by the newest database that the module proxy has
	GOTOOLCHAIN=$(RELEASE_GO) GOVULNCHECK=$(GOVULNCHECK) hack/tools/vuln.sh

##@ Chart and generated files

.PHONY: chart-lint
chart-lint: $(HELM) ## helm lint --strict; the chart's other tests are part of `make test`
	$(HELM) lint --strict $(CHART)

.PHONY: generate
generate: $(HELM) $(CONTROLLER_GEN) ## Write generated files: from api/ its deepcopy functions and the chart's definitions; the chart's values table, its golden files, config/; docs/reference; the tables of what was run
	hack/quick.sh hack/tools/crds.sh $(CONTROLLER_GEN)
	$(QUICK_GO) -C hack run ./tools/helm/chartdocs $(CURDIR)/$(CHART)
	$(QUICK_GO) -C hack test -vet=off -count=1 ./tools/helm/charttest -run TestGolden -update
	hack/tools/render-config.sh $(HELM)
	hack/quick.sh hack/tools/reference.sh
	$(QUICK_GO) -C hack run ./matrix table $(CURDIR)

.PHONY: verify
verify: verify-generated verify-modules ## Fail if anything generated, tidied or downloaded differs from what is committed

# `go mod verify` fails for a module with a local replacement; the modules that it downloads are verified with the others.
.PHONY: verify-modules
verify-modules:
	@for module in $(MODULES); do grep -q '=> \.\./' $$module/go.mod || { echo "verify $$module"; go -C $$module mod verify; } || exit 1; done

.PHONY: verify-generated
verify-generated: generate
	@for module in $(MODULES); do echo "tidy $$module"; go -C $$module mod tidy -diff || exit 1; done
	git diff --exit-code
	@test -z "$$(git ls-files --others --exclude-standard api chart config docs hack/tools)" || \
	  { git ls-files --others --exclude-standard api chart config docs hack/tools; echo 'generated, but not committed' >&2; exit 1; }

##@ Release

# What a release is built with: its standard library has fixes that the one of this machine may lack.
RELEASE_GO := go1.26.11

.PHONY: release
release release-check: export CYCLONEDX := $(CYCLONEDX)
release release-check: export GOVULNCHECK := $(GOVULNCHECK)
release: $(HELM) $(CYCLONEDX) $(GOVULNCHECK) ## Build a release to build/release: programs and image for four architectures, chart, plugin of kubectl, SBOMs, known vulnerabilities, checksums
	GOTOOLCHAIN=$(RELEASE_GO) hack/release.sh

.PHONY: release-check
release-check: $(HELM) $(CYCLONEDX) $(GOVULNCHECK) ## Show that the release is reproducible, in two clones, and that its programs for other architectures run (with qemu)
	@hack/preflight.sh release
	GOTOOLCHAIN=$(RELEASE_GO) hack/release.sh --check

##@ The one-node cluster

.PHONY: image
image: build ## Build the image, by the chart's default name, without a container engine, to build/image.tar
	$(KC) image --binary $(CURDIR)/$(BINARY) $(SMALL) --tag $(IMAGE) --output $(CURDIR)/build/image.tar

.PHONY: image-iptables
image-iptables: build ## Build the image for the iptables backend, with the machine's iptables (Debian's) in it, to build/image-iptables.tar
	$(KC) image --binary $(CURDIR)/$(BINARY) $(SMALL) --iptables --tag $(IMAGE)-iptables --output $(CURDIR)/build/image-iptables.tar

.PHONY: cluster-up
cluster-up: ## Start the one-node cluster (the first time it builds Kubernetes: some five minutes)
	@hack/preflight.sh build images up
	$(KC) up

.PHONY: cluster-down
cluster-down: ## Stop the one-node cluster and leave nothing behind
	$(KC) down

.PHONY: demo
demo: ## Show the agent step by step on the one-node cluster. EGRESS=1: also a pod that reaches only allowed names. ISTIO=1: at last Istio's bookinfo, in a real mesh (the first build takes ten minutes more)
	hack/demo.sh

.PHONY: demo-down
demo-down: cluster-down ## Remove the demo and its cluster

.PHONY: e2e
e2e: ## Run the end-to-end tests on the one-node cluster
	hack/e2e.sh

.PHONY: e2e-core
e2e-core: ## Run the round that every change must pass: a test for each promise of the README (some three minutes)
	E2E_BACKENDS=none E2E_HOOKS=core hack/e2e.sh

.PHONY: e2e-crio
e2e-crio: ## Run the tests of NRI and of managed proxies on a node of CRI-O, or those that RUN names
	E2E_RUNTIME=crio E2E_BACKENDS=none E2E_HOOKS=nri hack/e2e.sh $(if $(RUN),-test.run '$(RUN)')

.PHONY: istio-envoy
istio-envoy: ## Run the tests of Istio's proxy outside of pods with ENVOY=/path/to/envoy, of the version that Istio wants, instead of the stand-in
	@test -x '$(ENVOY)' || { echo 'name an Envoy: make istio-envoy ENVOY=/path/to/envoy' >&2; exit 2; }
	E2E_ENVOY='$(abspath $(ENVOY))' E2E_BACKENDS=none E2E_HOOKS=istio hack/e2e.sh -test.run '^TestIstioOutside$$'

.PHONY: matrix
matrix: ## Run what CI leaves out: CELLS is all, stale, touched (since the commit SINCE, HEAD^) or names as in hack/matrix; goes on where it was cut off
	@status=0; $(QUICK_GO) -C hack run ./matrix run $(CURDIR) '$(or $(CELLS),all)' || status=1; $(QUICK_GO) -C hack run ./matrix table $(CURDIR) || status=1; exit $$status

.PHONY: powercut
powercut: ## Cut the one-node cluster's power POWERCUT_CUTS times (20), or again as POWERCUT_SEED says; see hack/powercut.sh
	hack/powercut.sh

.PHONY: chaos
chaos: ## Make chaos on the one-node cluster for CHAOS_DURATION (10m), or again as CHAOS_SEED says; see hack/chaos.sh
	hack/chaos.sh

.PHONY: fresh
fresh: ## Run `make test` and `make demo` on a bare Debian in a directory, to show that they need nothing else (needs root). FRESH_COLD=1: with empty caches
	@hack/preflight.sh fresh
	hack/fresh.sh

.PHONY: findings
findings: ## What outside software does otherwise than one would guess, outside CI (two minutes, root). FINDINGS='NAME...': some of them
	@hack/preflight.sh kernel
	@nice findings/run.sh $(FINDINGS)

.PHONY: bench
bench: ## Measure speed, size and scale against the reference; writes build/bench.json
	hack/bench.sh

.PHONY: bench-small
bench-small: ## Run each part of `make bench` that needs no cluster once, small, so that it works when somebody wants figures (needs root)
	SMALL=1 BENCH_CLUSTER=0 hack/bench.sh

.PHONY: bench-scale
bench-scale: ## Only the scale: a full node, proxies with a roll-out and 500 hollow agents against a real API server (needs root, about 13 minutes)
	hack/bench.sh scale

##@ Housekeeping

.PHONY: tools
tools: $(GOLANGCI_LINT) $(GOVULNCHECK) $(HELM) $(CONTROLLER_GEN) $(CYCLONEDX) ## Build the pinned tools (the linter takes CPU minutes, once)

.PHONY: linter
linter: $(GOLANGCI_LINT)

.PHONY: print-helm
print-helm: $(HELM) # for scripts that are started by hand: HELM=$(make -s print-helm)
	@echo $(HELM)

.PHONY: clean
clean: ## Remove build/; caches outside the checkout stay
	rm -rf build

$(GOLANGCI_LINT):
	GOGC=400 nice $(QUICK_GO) -C hack/tools/programs build -ldflags='-s -w' -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(GOVULNCHECK):
	GOGC=400 nice $(QUICK_GO) -C hack/tools/programs build -ldflags='-s -w' -o $@ golang.org/x/vuln/cmd/govulncheck

# Helm compares a chart's kubeVersion with the Kubernetes release that it was linked for, which is an old one unless set here.
kube_minor   = $(shell awk '$$1 == "k8s.io/kubernetes" { split($$2, v, "."); print v[2] }' hack/cluster/programs/go.mod)
HELM_LDFLAGS = $(foreach pkg,chartutil lint/rules,-X helm.sh/helm/v3/pkg/$(pkg).k8sVersionMinor=$(kube_minor))

# From the module of the cluster's programs: they and Helm share most packages.
$(HELM):
	GOGC=400 nice $(QUICK_GO) -C hack/cluster/programs build -ldflags='-s -w $(HELM_LDFLAGS)' -o $@ helm.sh/helm/v3/cmd/helm

$(CONTROLLER_GEN):
	GOGC=400 nice $(QUICK_GO) -C hack/tools/programs build -ldflags='-s -w' -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen

$(CYCLONEDX):
	GOGC=400 nice $(QUICK_GO) -C hack/tools/programs build -ldflags='-s -w' -o $@ github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
