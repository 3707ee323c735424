# What a person does with this repository, one word each. `make` alone lists them.

.DEFAULT_GOAL := help
.PHONY: help rust stores test-programs build demo up down chaos test built-tests tested-files last-release test-large test-newer seeded-bugs fuzz fuzz-check alerts-test alerts-fire bench soak bench-micro bench-peers lint fmt chart-test chart-readme image

CARGO ?= cargo
# Fail points exist only in test builds. The same packages and features each time, so that nothing is built twice.
TEST := $(CARGO) test --workspace --features scheduler-node/failpoints
# A test waits for servers for half of its time, or more.
TESTS_AT_ONCE ?= 4
SEEDED := $(TEST) --lib -- --ignored --exact seeded::tests::each_seeded_bug_is_caught --nocapture
# Variables by which a shell names another database or collector. The drivers in tests and in `stack` would follow them.
unexport $(filter PG% OTEL_%,$(.VARIABLES))

# Cargo's target folder, asked for once, and only by the recipes that need it.
BUILT = $(eval BUILT := $$(shell CARGO='$(CARGO)' tools/target-folder))$(BUILT)
STACK = "$(BUILT)/release/stack"

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A prerequisite of what installs, so that a machine whose Rust does not do is left as it is.
rust:
	@CARGO='$(CARGO)' tools/rust-version

stores: rust ## Install what is missing of PostgreSQL, etcd, RabbitMQ and a C compiler
	@integration-tests/install

test-programs: rust ## Install what is missing of these, and of what only tests and benchmarks call
	@integration-tests/install tests

build: rust ## Build the node and the tools, optimised
	$(CARGO) build --release --package scheduler-node --package integration-tests --bins
	@grep --quiet DUETIME_SEEDED_BUG "$(BUILT)/release/duetime"; case $$? in 1) ;; 0) echo "duetime has seeded bugs: it was built with fail points"; exit 1 ;; *) exit 1 ;; esac

demo: stores build ## Three nodes from nothing, a stream of tasks, the master killed half way, a verdict
	@$(STACK) demo $(ARGS)

up: stores build ## Start three nodes and their stores, and leave them running
	@$(STACK) up $(ARGS)

down: ## Stop what `make up` started; ARGS=--purge removes its data
	@if [ -x $(STACK) ]; then $(STACK) down $(ARGS); elif [ -e .local/stack ]; then $(MAKE) --no-print-directory build && $(STACK) down $(ARGS); fi

# The scenarios are a target of their own (`it`): not more than two run at the same time. Helm, and what drives the browser, come from npm: where that
# is missing, neither the chart nor the console's pages are looked at.
# What the tests need is built and installed side by side: the one keeps the processors busy, the other waits for registries.
test: test-programs ## Run all tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line --old-file=test-programs built-tests tested-files
	RUST_TEST_THREADS=$(TESTS_AT_ONCE) $(TEST)
	$(TEST) --bench decisions
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target --old-file=test-programs seeded-bugs last-release
	@integration-tests/scenarios $(TEST) --test it

built-tests:
	$(TEST) --no-run
	$(TEST) --test it --no-run

tested-files: alerts-test fuzz-check
	@if command -v npm >/dev/null; then integration-tests/install browser && charts/test; else echo "not run here: charts/test: npm is not on this machine"; fi
	@integration-tests/install schemathesis
	@integration-tests/install redis || echo "Redis cannot be installed: the comparison with other schedulers is not tested"

# `make test` builds it beside the seeded bugs, whose tests hold the target folder only until they run.
last-release:
	@integration-tests/build-last-release

test-large: test-programs ## Run the tests that take long, on large tables
	$(TEST) --test it --test rooms --no-run
	@integration-tests/build-last-release
	DUETIME_TEST_LARGE=1 $(TEST) --test it -- --test-threads=1 --nocapture migration:: move_large::

# DUETIME_SEEDED_BUG=<name> before a test command runs those tests with one of the bugs.
seeded-bugs: test-programs ## Break the rules of the product one by one; each time, a test must fail
	$(SEEDED)

# RELEASE is a codename of Debian, or `next` for the one after this machine's. SERVERS says which of the three are newer. ARGS chooses scenarios.
# The first build is for the node: the target of the scenarios alone leaves an older one in place.
RELEASE ?= next
SERVERS ?= postgresql etcd rabbitmq
test-newer: test-programs ## Run the scenarios on servers of the next Debian release; ARGS='crash::' SERVERS=etcd RELEASE=forky
	@if command -v npm >/dev/null; then integration-tests/install browser; fi
	@integration-tests/install schemathesis
	@integration-tests/newer $(RELEASE) "$(SERVERS)" sh -c '$(TEST) --test it --test rooms --no-run && $(TEST) --test it -- --test-threads=1 $(ARGS)'

# It needs a nightly compiler and cargo-fuzz; `make test` drives the same targets with their seeds on any compiler. TARGETS and FUZZ_SECONDS choose.
# A toolchain in CARGO gives way to the nightly one. Everything is built in fuzz/target. The targets of fuzz/node_targets take the whole node with them; they come last.
FUZZ_SECONDS ?= 60
NODE_TARGETS := $(basename $(notdir $(wildcard fuzz/node_targets/*.rs)))
TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs))) $(NODE_TARGETS)
fuzz: ## Look for inputs that break a parser, FUZZ_SECONDS for each target
	@command -v cargo-fuzz >/dev/null || { echo "cargo-fuzz is not installed: cargo install cargo-fuzz"; exit 1; }
	FUZZ_CORPUS="$(CURDIR)/fuzz/corpus" $(TEST) --lib --test fuzz -- no_parser
	@for target in $(TARGETS); do \
	   case " $(NODE_TARGETS) " in *" $$target "*) features=node ;; *) features= ;; esac; \
	   $(filter-out +%,$(CARGO)) +nightly fuzz run --features "$$features" $$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=131072 -timeout=10 || exit 1; \
	 done

# libFuzzer itself, which is C++, is not needed to check the crate around it; the path only has to exist.
fuzz-check: ## Check that the crate of fuzz targets builds, with any compiler
	CUSTOM_LIBFUZZER_PATH="$(CURDIR)/fuzz/Cargo.toml" $(CARGO) check --quiet --manifest-path fuzz/Cargo.toml --bins

alerts-test: ## Check alerts, runbooks and dashboards, and when each alert fires
	@integration-tests/install prometheus
	@promtool check rules charts/duetime/files/rules.yaml
	@promtool test rules charts/duetime/tests/rules_test.yaml
	@charts/duetime/tests/check_rules.py

alerts-fire: stores build ## Make each alert fire by its cause on a cluster of its own, and see it resolve; ARGS='--only NAME,NAME'
	@integration-tests/install prometheus
	@$(STACK) alerts $(ARGS)

# The fail points are in test builds only.
chaos: test-programs ## Break a cluster by a seeded plan under load for an hour, and judge; ARGS='--minutes 10 --seed 7 --small'
	$(TEST) --test it --test rooms --no-run
	@integration-tests/build-last-release
	-@integration-tests/install clocks
	@"$(BUILT)/debug/stack" chaos $(ARGS)

bench: test-programs build ## Measure lateness and throughput
	@$(STACK) bench $(ARGS)

soak: test-programs build ## Look for an hour whether anything grows under load; ARGS='--soak-minutes 10 --soak-rate 500'
	@$(STACK) bench --only soak $(ARGS)

bench-micro: ## Measure what the decisions on a task's way cost; ARGS='heap' chooses
	$(CARGO) bench --package common --bench decisions -- $(ARGS)

# Each peer is fetched from its own registry; one that cannot be is a row that says so. DELAYED_PLUGIN names the .ez file of that plugin.
bench-peers: stores build ## Measure Duetime beside other schedulers; ARGS='--only duetime,bullmq --works late,burst --runs 3 --seconds 60'
	@integration-tests/install redis || echo "Redis cannot be installed: its schedulers are not run" >&2
	@$(STACK) peers $(ARGS)

lint: ## Check the format, clippy's opinion, the prose, and licences, sources and advisories of dependencies
	$(CARGO) fmt --all --check
	tools/prose
	$(CARGO) clippy --workspace --all-targets --features scheduler-node/failpoints -- -D warnings
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is not installed: cargo install --locked cargo-deny"; exit 1; }
	$(CARGO) deny check

fmt: ## Format the code
	$(CARGO) fmt --all

chart-test: ## Test the Helm chart with Helm 3 and 4; with KUBECONFIG set, in that cluster too
	@charts/test $(ARGS)

chart-readme: ## Write the chart's snapshots and the tables of its README anew
	@charts/test update

image: ## Build a static binary and an image with nothing else; IMAGE names it, BINARY is a static binary already there
	@tools/image
