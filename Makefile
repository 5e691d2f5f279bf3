# Everything that a person or CI runs. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
MAKEFLAGS += --no-print-directory

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/messina
# A failed test prints its reason; a backtrace of a hundred lines would hide it.
export RUST_BACKTRACE := 0
BUILT := target/$(shell uname -m)-unknown-linux-gnu
TESTBED := $(BUILT)/debug/testbed
# With the tests, and so with the features that they need of others: nothing is built twice, for unit tests and for these.
BUILD_ALL := cargo build --workspace --all-targets
# The programs alone, for demo and bench.
BUILD_PROGRAMS := cargo build --workspace
# Examples in documentation are compiled by rustdoc, and are no test programs.
DOC_TESTS := cargo test --workspace --doc --quiet
RUN_TESTS := PYTHONPATH=$(CACHE)/python $(TESTBED) test
# Tests that are interrupted leave their clusters behind.
REMOVE_CLUSTERS := trap '$(TESTBED) down --tests || true' EXIT

.PHONY: help
help: ## Lists the targets
	@echo "make TARGET, where TARGET is one of:"
	grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/' | expand -t 14

.PHONY: demo
demo: needs-cargo ## Starts a local Kubernetes with the operator and a datacenter, and prints commands to try
	@if [ ! -x $(TESTBED) ]; then
		echo "The first run compiles Messina, about 13 minutes on two CPUs, and downloads Kubernetes, or builds it in about 10 minutes"
		echo "more where its release site cannot be reached. Later runs take less than a minute."
	fi
	# Kubernetes and the rest of the workspace, side by side: a download and a build do not wait for each other.
	cargo build --workspace --bin testbed
	$(BUILD_PROGRAMS) & build=$$!
	trap 'kill $$build 2> /dev/null || true' EXIT
	$(TESTBED) tools
	wait $$build
	trap - EXIT
	$(TESTBED) demo --name demo

.PHONY: demo-down
demo-down: needs-cargo ## Removes what `make demo` started
	@if [ ! -x $(TESTBED) ]; then cargo build --workspace --bin testbed; fi
	$(TESTBED) down --name demo

.PHONY: check
check: lint build ## Runs lint, unit tests, the model and end-to-end tests: before every commit
	@$(REMOVE_CLUSTERS)
	$(DOC_TESTS)
	$(RUN_TESTS)

.PHONY: test
test: lint build ## Runs everything that CI runs: `make check`, and the slow tier
	@$(REMOVE_CLUSTERS)
	$(DOC_TESTS)
	$(RUN_TESTS) --slow

.PHONY: build
build: needs-cargo $(CACHE)/python/yaml
	@started=$$SECONDS
	$(BUILD_ALL)
	echo "build took $$((SECONDS - started)) s"

.PHONY: unit
unit: needs-cargo $(CACHE)/python/yaml ## Runs the tests that need no cluster
	@MESSINA_WORLDS=10 PYTHONPATH=$(CACHE)/python cargo test --workspace --exclude messina-e2e

.PHONY: e2e
e2e: needs-only build ## Runs tests whose name contains ONLY, of either tier, and leaves the clusters running: make e2e ONLY=upgrade
	@$(RUN_TESTS) --slow --keep --only "$$ONLY"

.PHONY: soak
soak: build ## Damages all objects of a datacenter in turn, changes it again and again, and tests the testbed itself
	@$(REMOVE_CLUSTERS)
	$(RUN_TESTS) --slow --selftests --only testbed::
	# No other run of tests begins meanwhile: it would remove the cluster of this one.
	MESSINA_TEST=soak flock $(CACHE)/test-run.lock cargo test --workspace --test e2e -- --ignored --nocapture datacenter_converges_after_damage_and_random_changes

.PHONY: soak-hostile
soak-hostile: build ## Creates and deletes objects for an hour among hostile etcd servers, and checks that the operator does not grow
	@$(REMOVE_CLUSTERS)
	# No other run of tests begins meanwhile: it would remove the cluster of this one.
	MESSINA_TEST=soak-hostile flock $(CACHE)/test-run.lock cargo test --workspace --test e2e -- --ignored --nocapture --test-threads=1 hostile::

.PHONY: bench
bench: needs-cargo release ## Measures clusters and the operator: time, memory, CPU time and requests
	@$(BUILD_PROGRAMS)
	for mode in "--light" "--nodes 1" "--nodes 3" "--with-etcd" "--with-etcd --etcd-members 3"; do
		for run in 1 2 3; do
			echo "testbed up $$mode"
			$(TESTBED) up --name bench $$mode
			$(TESTBED) down --name bench
		done
	done
	$(TESTBED) bench $(BUILT)/release/messina

.PHONY: lint
lint: needs-cargo ## Checks formatting and runs clippy; licences and sources are a unit test
	@started=$$SECONDS
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	echo "lint took $$((SECONDS - started)) s"

.PHONY: crds
crds: needs-cargo ## Regenerates deploy/crds/ from the types
	@cargo run --quiet --package messina-operator -- crds --output deploy/crds

.PHONY: schema-facts
schema-facts: needs-cargo ## Regenerates the schema facts of Kubernetes' own types from an API server
	@$(BUILD_PROGRAMS)
	$(TESTBED) up --light --name facts
	trap '$(TESTBED) down --name facts' EXIT
	$(TESTBED) schema-facts --name facts > target/kubernetes-facts.json
	mv target/kubernetes-facts.json crates/api/src/kubernetes-facts.json

.PHONY: release
release: needs-cargo ## Builds the statically linked programs `messina` and `kubectl-messina`
	@cargo build --release --package messina-operator --package messina-kubectl
	ls -l $(BUILT)/release/{messina,kubectl-messina}

.PHONY: needs-only
needs-only:
	@: $${ONLY:?names the tests to run, such as \`make e2e ONLY=upgrade\`; target/test-costs.json names those of the last run}

.PHONY: needs-cargo
needs-cargo:
	@command -v cargo > /dev/null || { echo "Messina is written in Rust: install cargo and rustc as rust-toolchain.toml names them, then run this again." >&2; exit 1; }

# The conformance check is a Python program; without PyYAML it is skipped, and says so.
$(CACHE)/python/yaml:
	@python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target $(CACHE)/python pyyaml || \
		echo "PyYAML cannot be installed: the conformance check will be skipped."
