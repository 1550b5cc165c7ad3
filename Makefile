# make          shows the targets
# make test     is what has to pass; it needs Go and Docker

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# Every module of this repository.
MODULES := $(dir $(wildcard go.mod */go.mod))

# The linter is compiled from the Go module proxy, once a version.
LINT_VERSION := v2.15.0
LINT := $(CURDIR)/bin/golangci-lint-$(LINT_VERSION)

# How often integration tests repeat what they sample.
REPEAT ?= 1
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
test: test-unit integration ## All tests, those with containers included; a skipped test fails

.PHONY: test-unit
test-unit: ## Tests of the root module, with the race detector; no containers
	.ci/gotest $$(.ci/race) -timeout 10m ./...

.PHONY: integration
integration: ## Tests on real ZooKeeper servers; REPEAT=n samples n times. Needs Docker
	.ci/docker
	REPEAT=$(REPEAT) .ci/gotest -C integration -p 1 -count 1 -timeout $(if $(filter 1,$(REPEAT)),25m,0) ./...

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

.PHONY: soak
soak: ## Simulate 100,000 grants and 10,000 faults; FIRST=n starts at another seed
	go test -run '^TestSimulation$$' -count 1 -v -soak -first $(or $(FIRST),0) -timeout 35m .

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
