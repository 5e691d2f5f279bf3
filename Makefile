# Everything that a person or CI runs. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
MAKEFLAGS += --no-print-directory

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/messina
# A test says what is wrong; a hundred lines of frames would hide that.
export RUST_BACKTRACE := 0
BUILT := target/$(shell uname -m)-unknown-linux-gnu
TESTBED := $(BUILT)/debug/testbed
# With the tests, and so with the features that they need of others: nothing is built twice, for unit tests and for these.
BUILD_ALL := cargo build --workspace --all-targets
DENY_VERSION := 0.20.2
DENY := $(CACHE)/tools/cargo-deny-$(DENY_VERSION)/bin/cargo-deny

.PHONY: help
help: ## Lists the targets
	@echo "make TARGET, where TARGET is one of:"
	grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/' | expand -t 14

.PHONY: demo
demo: needs-cargo ## Starts a local Kubernetes with the operator and a datacenter, and says what to try
	@cargo build --quiet --workspace
	$(TESTBED) demo --name demo

.PHONY: demo-down
demo-down: needs-cargo ## Removes what `make demo` started
	@cargo build --quiet --package messina-testbed
	$(TESTBED) down --name demo

.PHONY: test
test: ## Runs everything that CI runs: lint, unit and e2e
	@started=$$SECONDS
	for part in lint unit e2e; do
		echo "== $$part"
		part_started=$$SECONDS
		$(MAKE) $$part
		echo "== $$part took $$((SECONDS - part_started)) s"
	done
	echo "All tests passed in $$((SECONDS - started)) s."

.PHONY: unit
unit: needs-cargo $(CACHE)/python/yaml ## Runs the tests that need no cluster
	@PYTHONPATH=$(CACHE)/python cargo test --workspace --exclude messina-e2e

.PHONY: e2e
e2e: needs-cargo ## Runs the tests that need a cluster, on clusters of their own
	@$(BUILD_ALL)
	trap 'for name in test test-light faults; do $(TESTBED) down --name $$name || true; done' EXIT
	$(TESTBED) up --light --name test-light
	if [ "$$(id -u)" = 0 ]; then $(TESTBED) up --name test; fi
	# So many keep two processors busy; more of them wait too long for each other.
	cargo test --workspace --test e2e -- --test-threads 5
	cargo test --workspace --test faults

.PHONY: soak
soak: needs-cargo ## Damages all objects of a datacenter in turn, and changes it again and again
	@$(BUILD_ALL)
	# The test removes its cluster, unless it was interrupted.
	trap '$(TESTBED) down --name soak 2> /dev/null || true' EXIT
	cargo test --workspace --test e2e -- --ignored --nocapture damage_and_changes_by_chance_end_well

.PHONY: bench
bench: needs-cargo release ## Measures clusters and the operator: how long, how much, how many requests
	@cargo build --quiet --package messina-testbed
	for mode in "--light" "--nodes 1" "--nodes 3" "--with-etcd" "--with-etcd --etcd-members 3"; do
		for run in 1 2 3; do
			echo "testbed up $$mode"
			$(TESTBED) up --name bench $$mode
			$(TESTBED) down --name bench
		done
	done
	$(TESTBED) bench $(BUILT)/release/messina

.PHONY: lint
lint: needs-cargo $(DENY) ## Checks form, mistakes, licences and sources
	@cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	# Its list of advisories cannot be had everywhere; the rest needs nothing but the sources.
	$(DENY) --log-level error check licenses bans sources

.PHONY: crds
crds: needs-cargo ## Writes deploy/crds/ anew from the types
	@cargo run --quiet --package messina-operator -- crds --output deploy/crds

.PHONY: schema-facts
schema-facts: needs-cargo ## Asks the API server anew what it says of Kubernetes' own types
	@cargo build --quiet --package messina-testbed
	$(TESTBED) up --light --name facts
	trap '$(TESTBED) down --name facts' EXIT
	$(TESTBED) schema-facts --name facts > target/kubernetes-facts.json
	mv target/kubernetes-facts.json crates/api/src/kubernetes-facts.json

.PHONY: release
release: needs-cargo ## Builds the statically linked programs `messina` and `kubectl-messina`
	@cargo build --release --package messina-operator --package messina-kubectl
	ls -l $(BUILT)/release/{messina,kubectl-messina}

.PHONY: needs-cargo
needs-cargo:
	@command -v cargo > /dev/null || { echo "Messina is written in Rust: install cargo and rustc as rust-toolchain.toml names them, then run this again." >&2; exit 1; }

$(DENY):
	@echo "building cargo-deny $(DENY_VERSION) (once; some minutes)"
	CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
		cargo install cargo-deny --version $(DENY_VERSION) --locked --quiet --no-default-features --root $(CACHE)/tools/cargo-deny-$(DENY_VERSION)

# The conformance check is a Python program; without PyYAML it is skipped, and says so.
$(CACHE)/python/yaml:
	@python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target $(CACHE)/python pyyaml || \
		echo "PyYAML cannot be installed: the conformance check will be skipped."
