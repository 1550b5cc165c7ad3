# make          shows the targets
# make test     is what has to pass; it needs Go, Docker and PostgreSQL

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# Every module of this repository.
MODULES := $(dir $(wildcard go.mod */go.mod */*/go.mod))

# The linter is compiled from the Go module proxy, once a version.
LINT_VERSION := v2.15.0
LINT := $(CURDIR)/bin/golangci-lint-$(LINT_VERSION)

# How often integration tests repeat what they sample.
REPEAT ?= 1
# Where the integration tests write their figures.
REPORT ?= $(CURDIR)/dist/integration
# How long each fuzz target runs.
FUZZTIME ?= 10s

.DEFAULT_GOAL := help
.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Three workers share payment events; one is killed, one suspended. Needs Go only
	go run ./examples/demo

.PHONY: test
test: test-unit test-charges test-deploy integration ## All tests, those with containers included; a skipped test fails

.PHONY: test-unit
test-unit: ## Tests of the root module, with the race detector; no containers. As root it installs zsh and fish
	.ci/shells
	.ci/gotest $$(.ci/race) -timeout 10m ./...
	: with the detector on, these do half of it or less
	.ci/gotest -run '^(TestSimulation|TestThousandsOfHandOversLoseNoWakeUp|TestParentReapedBeforeTheCreateIsMadeAgain|TestLongQueue)$$' -timeout 10m .

.PHONY: test-charges
test-charges: ## Tests of examples/charges with real processes. Needs PostgreSQL, which it installs as root
	.ci/gotest -C examples/charges $$(.ci/race) -count 1 -timeout 5m ./...

.PHONY: test-deploy
test-deploy: ## Alerts, dashboard and examples of deploy/, on a real Prometheus; fetches Debian's where there is none
	tools=$$(.ci/deploy-tools); PATH="$$tools:$$PATH" .ci/gotest -C deploy -count 1 -timeout 5m ./...

.PHONY: integration
integration: ## Tests on real ZooKeeper servers; REPEAT=n samples n times. Needs Docker
	.ci/docker
	rm -rf $(REPORT)
	@code=0; export REPEAT=$(REPEAT) ZKLOCK_REPORT=$(REPORT) limit=$(if $(filter 1,$(REPEAT)),25m,0); \
	: conformance alone, since its cases are about single ticks; \
	.ci/gotest -C integration -count 1 -timeout $$limit ./conformance || code=1; \
	.ci/gotest -C integration -p 2 -count 1 -timeout $$limit $$(go list -C integration ./... | grep -v /conformance$$) || code=1; \
	exit $$code

.PHONY: torture
torture: ## Break servers, clients and lines under worker processes for MINUTES=n (20). Needs Docker
	.ci/docker
	ZKLOCK_REPORT=$(REPORT) .ci/gotest -C integration -count 1 -timeout 0 ./torture -minutes $(or $(MINUTES),20)

.PHONY: comparison
comparison: ## Run the four libraries' locks under all faults, for docs/comparison.md. Needs Docker
	.ci/docker
	ZKLOCK_REPORT=$(REPORT) .ci/gotest -C integration -count 1 -timeout 20m ./peers -run 'Libraries|Odd|Control' -everything
	@echo; cat $(REPORT)/comparison.md

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done

.PHONY: conformance-record
conformance-record: ## Write the answers of real servers into the conformance cases. Needs Docker
	.ci/docker
	go test -C integration -count 1 ./conformance -record

.PHONY: bench
bench: ## Measure zklock beside Curator, kazoo and go-zookeeper; writes bench/RESULTS.md. Needs Docker
	.ci/docker
	cd bench && go run . -command "make bench"

.PHONY: bench-short
bench-short: ## One short round of what bench measures; fails if a figure is missing. Needs Docker
	.ci/docker
	dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; cd bench && go test -count 1 ./... && go run . -short -out "$$dir"

.PHONY: bench-micro
bench-micro: ## Micro-benchmarks of the packages, with their allocations
	go test -run '^$$' -bench . -benchmem . ./dedup/... ./internal/wire

.PHONY: soak
soak: ## Simulate the lock (100,000 grants, 10,000 faults) and dedup (2,000 seeds); FIRST=n starts at another seed
	: the package comes first, or go test takes it for an argument of the test
	go test . -run '^TestSimulation(Sequence)?$$' -count 1 -v -timeout 90m -soak -first $(or $(FIRST),0)
	go test ./dedup -run '^TestSimulation$$' -count 1 -v -timeout 60m -soak -first $(or $(FIRST),0)
	: the controls: a simulation that finds nothing without a safeguard has shown nothing
	go test . ./dedup -run '^TestSimulationFinds' -count 1
	.ci/safeguards simulation-control

.PHONY: safeguards
safeguards: ## Take each safeguard out of a copy and see its test fail
	.ci/safeguards

.PHONY: lint
lint: $(LINT) ## Run golangci-lint on every module
	@code=0; for dir in $(MODULES); do echo "lint $$dir"; \
		(cd $$dir && $(LINT) run --config $(CURDIR)/.golangci.yaml ./...) || code=1; done; exit $$code

.PHONY: fmt
fmt: $(LINT) ## Format every module
	for dir in $(MODULES); do (cd $$dir && $(LINT) fmt --config $(CURDIR)/.golangci.yaml ./...); done

.PHONY: fmt-check
fmt-check: ## Fail if gofmt would change a file
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted:"; echo "$$files"; exit 1; fi

.PHONY: vet
vet: ## Run go vet on every module
	@code=0; for dir in $(MODULES); do echo "vet $$dir"; go vet -C $$dir ./... || code=1; done; exit $$code

.PHONY: tidy-check
tidy-check: ## Fail if go mod tidy would change a go.mod or go.sum
	@code=0; for dir in $(MODULES); do echo "tidy $$dir"; go mod tidy -C $$dir -diff || code=1; done; exit $$code

$(LINT):
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv bin/golangci-lint $@
