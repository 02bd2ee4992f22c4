# Everything a developer or a CI job runs. The default goal lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

# The Go that is installed, and no other that a module might ask for.
export GOTOOLCHAIN := local
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)
# Binaries need no C library, and tests without the race detector share the compiled packages with them.
export CGO_ENABLED := 0

# The release: the tag without its v, or, in a copy without tags, the release that this tree follows and the commit.
VERSION := $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null | sed s/^v// | grep . || \
	echo "0.1.0+$$(git describe --always --dirty 2>/dev/null || echo unknown)")
LDFLAGS := -X github.com/cyborg-project/cyborg.Version=$(VERSION)
STANDALONE := deploy/standalone
TOOLS := .cache/bin

# RACE=1 runs the tests of the root module under the race detector.
RACE ?=
# Arguments for go test (TESTFLAGS) and for the standalone (ARGS).
TESTFLAGS ?=
ARGS ?=

# After this time the tests of a package are stuck, and say where. A quiet machine needs a tenth of it.
TIMEOUT := 1h

# Packages whose tests compare generated files, and write them anew with -update.
generated = $(shell grep -rl --include='*_test.go' 'flag.Bool."update"' . | xargs -r -n1 dirname | sort -u)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: postgres build ## Run everything on this machine: one pretended host and this machine's own PCI devices
	@exec bin/cyborg-standalone --hosts fake:8xfpga,2xgpu --hosts sysfs:/ $(ARGS)

.PHONY: test
test: postgres build $(if $(RACE),gcc) ## Run every test that needs only this machine (RACE=1: with the race detector)
	@# Tests below tests/ start the binaries in bin/, which the test cache does not know: they always run.
	# They are links to the binaries, which stay as they are when somebody builds anew meanwhile.
	mkdir -p .cache
	export CYBORG_BIN="$$(mktemp -d "$$PWD/.cache/bin-of-test.XXXXXX")"
	trap 'rm -rf "$$CYBORG_BIN"' EXIT
	cp -l bin/cyborg bin/cyborg-agent bin/cyborg-standalone bin/cyborg-test-agent "$$CYBORG_BIN"
	root() { CGO_ENABLED=$(if $(RACE),1,0) go test $(if $(RACE),-race) -timeout $(TIMEOUT) $(TESTFLAGS) "$$@"; }
	# Some containers let nobody change the clock of a process, which is tried here. Elsewhere no test may do without.
	if refused="$$(CYBORG_TEST_CLOCKS=required go test -count=1 -run '^TestNeed$$' ./tests/clock 2>&1)"; then
		export CYBORG_TEST_CLOCKS=required
	fi
	# So it is with disks that lose their power, which only root may make, and not in each container.
	if diskless="$$(CYBORG_TEST_ROOT=required go test -count=1 -run '^TestNeedDisks$$' ./tests/harness 2>&1)"; then
		export CYBORG_TEST_ROOT=required
	fi
	mapfile -t packages < <(go list ./... | grep -v '/tests\(/\|$$\)')
	status=0 # one that fails does not keep the others from running
	root "$${packages[@]}" || status=1
	root -count=1 ./tests/... || status=1
	# Without the race detector: it would compile Temporal's 1,400 packages a second time, to watch code that is not ours.
	cd $(STANDALONE)
	go test -timeout $(TIMEOUT) $(TESTFLAGS) ./... || status=1
	[ "$${CYBORG_TEST_CLOCKS:-}" = required ] || echo "Skipped: what needs clocks that differ; $$(grep -o 'the clocks of processes.*' <<<"$$refused")"
	[ "$${CYBORG_TEST_ROOT:-}" = required ] || echo "Skipped: what needs disks that lose their power; $$(grep -o 'disks cannot be made.*' <<<"$$diskless")"
	[ -n "$${OPENSTACK_RIG:-}" ] || echo "Skipped: what needs a real OpenStack; make test-openstack runs it."
	[ -n "$${CYBORG_TEST_HARDWARE:-}" ] || echo "Skipped: what needs a real kernel; make test-hardware runs it."
	[ "$${CYBORG_TEST_NEEDS:-}" = required ] || echo "Skipped: what needs root, or other things that are not here; .ci/run demands them where root may mount disks."
	exit $$status

.PHONY: test-openstack
test-openstack: postgres openstack build ## Run the tests against a real Keystone, Placement, Glance and Nova
	@OPENSTACK_RIG="$${OPENSTACK_RIG:-new}" go test -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) ./tests/openstack/...

.PHONY: test-hardware
test-hardware: postgres hardware build ## Run drivers and an agent on a real kernel, in a machine that QEMU emulates
	@CYBORG_TEST_HARDWARE=required go test -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) ./tests/hardware/...

.PHONY: test-hardware-long
test-hardware-long: postgres hardware build ## As test-hardware, with what takes long there
	@CYBORG_TEST_HARDWARE=long go test -count=1 -timeout 3h $(TESTFLAGS) ./tests/hardware/...

.PHONY: bench-openstack
bench-openstack: postgres openstack build ## Run the benchmark of Nova's requests, with a real Keystone and Placement
	@OPENSTACK_RIG="$${OPENSTACK_RIG:-new}" go test ./tests/bench -run '^$$' -bench OpenStackBind -benchtime=256x -timeout 1h $(TESTFLAGS)

.PHONY: build
build: standalone ## Build the binaries into bin/, and beside them the agent of the tests, which has fake cards
	@go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/cyborg ./cmd/cyborg-agent ./tests/cyborg-test-agent

.PHONY: standalone
standalone: ## Build bin/cyborg-standalone, the slow one, alone
	@if [ ! -e bin/cyborg-standalone ]; then
		echo "Building bin/cyborg-standalone. The first time this takes some minutes: it contains Temporal's server."
	fi
	cd $(STANDALONE)
	go build -ldflags '$(LDFLAGS)' -o ../../bin/cyborg-standalone .

.PHONY: man
man: build ## Write the manual pages into bin/man
	@for program in cyborg cyborg-agent cyborg-standalone; do
		bin/$$program man bin/man
	done

.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/workflowcheck ## Check style, import arrows and the determinism of workflows
	@$(TOOLS)/golangci-lint run
	$(TOOLS)/workflowcheck -config deploy/tools/workflowcheck.yaml ./workflows/...
	cd $(STANDALONE)
	../../$(TOOLS)/golangci-lint run --config ../../.golangci.yaml

$(TOOLS)/golangci-lint: PACKAGE := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(TOOLS)/workflowcheck: PACKAGE := go.temporal.io/sdk/contrib/tools/workflowcheck
$(TOOLS)/golangci-lint $(TOOLS)/workflowcheck: deploy/tools/go.mod deploy/tools/go.sum
	@echo "Building $@, once for each version of it."
	go build -C deploy/tools -o '$(CURDIR)/$@' $(PACKAGE)

.PHONY: generate
generate: ## Write the generated files anew: documentation, examples, golden files
	@go test $(generated) -update

.PHONY: verify
verify: tidy ## Check that the generated files and the module files are current
	@go test -count=1 $(generated)

.PHONY: tidy
tidy: ## Check that the module files are current
	@for module in . $(STANDALONE) deploy/tools; do
		go -C "$$module" mod tidy -diff || { echo "$$module/go.mod is not tidy: run go mod tidy there" >&2; exit 1; }
	done

.PHONY: bench
bench: postgres build ## Run the benchmarks
	@go test -run '^$$' -bench . -benchmem $(TESTFLAGS) ./...
	cd $(STANDALONE)
	go test -run '^$$' -bench . -benchmem $(TESTFLAGS) ./...

# How long make fuzz looks for input that a target does not survive.
FUZZTIME ?= 10s

.PHONY: fuzz
fuzz: postgres ## Fuzz every parser of outside bytes, each for FUZZTIME (10s); what is found lies in testdata/fuzz
	@status=0
	for module in . $(STANDALONE); do
		while IFS=: read -r file line; do
			target="$${line#func }"
			(cd "$$module" && go test "$$(dirname "$$file")" -run '^$$' -fuzz "^$${target%%(*}$$" -fuzztime $(FUZZTIME) $(TESTFLAGS)) || status=1
		done < <(cd "$$module" && grep -ro --include='*_test.go' --exclude-dir=deploy '^func Fuzz[A-Za-z0-9]*(' . | sort)
	done
	exit $$status

# What make chaos kills and how: the number of kills, the seed of the schedule (0: a new one), the only faults there are.
KILLS ?= 200
SEED ?= 0
FAULTS ?=

.PHONY: chaos
chaos: postgres build ## Kill, stop and cut off the processes of a cluster under work (KILLS=200 SEED=0 FAULTS=kill,freeze,…)
	@go test ./tests/chaos -count=1 -v -run TestChaos -timeout 4h -kills '$(KILLS)' -seed '$(SEED)' -faults '$(FAULTS)' $(TESTFLAGS)

.PHONY: mutants
mutants: postgres ## Break the code in each way that tests/mutants lists, and require that a test notices
	@go test ./tests/mutants -count=1 -v -run TestMutantsDie -mutants -timeout 2h $(TESTFLAGS)

.PHONY: clean
clean: ## Remove what was built, tools included
	@rm -rf bin .cache

# What the machine must have. Root gets it through apt; others are told what to install.

.PHONY: postgres
postgres: ## Install PostgreSQL's server binaries where they are missing (root), or say so
	@found() {
		for binary in "$$(command -v postgres || true)" /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres; do
			[ -x "$$binary" ] || continue
			[ "$$("$$binary" --version | grep -oE '[0-9]+' | head -n1)" -ge 15 ] && return
		done
		return 1
	}
	found && exit
	$(call install,postgresql,PostgreSQL 15 or newer (the server binaries; on Debian and Ubuntu: apt-get install postgresql))
	found || { echo "apt has no PostgreSQL 15 or newer; please install one (the server binaries)" >&2; exit 1; }

.PHONY: gcc
gcc: ## Install a C compiler for the race detector where it is missing (root), or say so
	@command -v gcc >/dev/null && exit
	$(call install,gcc libc6-dev,a C compiler for the race detector (on Debian and Ubuntu: apt-get install gcc libc6-dev))

.PHONY: openstack
openstack: ## Install OpenStack's packages where they are missing (root on Debian 12), or say so
	@tests/openstack/rig/rig install

.PHONY: hardware
hardware: ## Install QEMU where it is missing (root on Debian 12), and make the kernel of test-hardware, or say so
	@tests/hardware/rig/rig install

# install,PACKAGES,WHAT installs Debian packages as root, or asks for WHAT and fails.
define install
if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "Please install $(2)." >&2
	exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1)
endef
