# Targets a user needs: run, test. The rest is for working on Triptych.
VENV ?= .venv
# python3, or the operating system's if only that was compiled with optimisations, and is new enough.
IS_OPTIMISED = import ensurepip, sys; from shared.process import interpreter; \
	sys.exit(not (3, 11) <= sys.version_info < (3, 14) or not interpreter.is_optimised())
PYTHON ?= $(or $(firstword $(foreach each,python3 /usr/bin/python3,\
	$(shell $(each) -c '$(IS_OPTIMISED)' 2>/dev/null && echo $(each)))),python3)
BIN := $(VENV)/bin
TEST_JOBS ?= 3
SOURCES := shared coordinator worker tests loadtest
# Takes a minute, which would otherwise compete with the first requests; what is in the cache on disk is left as it is.
COMPILE_KERNELS = $(BIN)/triptych warm

.PHONY: run test load lint types format proto proto-check ui ui-check test-page test-page-minute conformance bench bench-history bench-smoke bench-promql bench-ingest bench-blocks bench-journal bench-isolation bench-log bench-vector bench-vector-large bench-path bench-small bench-access bench-start chaos chaos-minute explore powerloss check-damage simulate comparison mutants fuzz fuzz-minute attacks overload backup-drill lock audit clean

run: $(VENV)/.warm  ## install what is missing and start the cluster on 127.0.0.1:9090
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/honcho start

test: $(VENV)/.installed-test  ## install what is missing and run the test suite, a file at a time in each of TEST_JOBS, then those whose bound is a time (the page: test-page)
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder --ignore tests/page -m "not alone"
	$(BIN)/python -m pytest tests/cluster -m alone

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	$(COMPILE_KERNELS)
	touch $@

$(VENV)/.warm: $(VENV)/.installed $(shell find shared coordinator worker -name '*.py')
	$(COMPILE_KERNELS)
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	$(COMPILE_KERNELS)
	touch $@ $(VENV)/.installed

$(VENV)/.installed-load: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,load]'
	$(COMPILE_KERNELS)
	touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-fuzz: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,fuzz]'
	$(COMPILE_KERNELS)
	touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-release: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	touch $@

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.installed-test
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(VENV)/.installed-test  ## regenerate proto/*_pb2.py
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. proto/*.proto

proto-check: $(VENV)/.installed-test  ## fail unless the generated modules are those of the .proto files
	rm -rf build/proto-check && mkdir -p build/proto-check
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=build/proto-check --pyi_out=build/proto-check proto/*.proto
	for file in build/proto-check/proto/*; do cmp "$$file" "proto/$$(basename $$file)" || exit 1; done

powerloss: $(VENV)/.installed-test  ## power lost at 10,000 points of recorded workloads, and every sync left out once
	$(BIN)/python -m tests.powerloss --points $(or $(POINTS),10000) --seed $(or $(SEED),1)
	$(if $(POINTS),,$(BIN)/python -m tests.powerloss.omitted --seed $(or $(SEED),1))

check-damage: $(VENV)/.installed-test  ## a flipped byte at 500 places of a data directory, of every kind of file (FLIPS, SEED)
	CHECK_FLIPS=$(or $(FLIPS),500) CHECK_SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/check

ui:  ## make coordinator/ui/vendor.js of the packages that its lock file names; needs npm
	cd coordinator/ui/vendor && npm ci --no-audit --no-fund --silent && npm run --silent build

ui-check: ui  ## fail unless the vendor.js that is committed is what its lock file gives
	git diff --exit-code --stat -- coordinator/ui

test-page: $(VENV)/.installed-test  ## the page in a real browser; needs Debian's chromium
	$(BIN)/python -m pytest tests/page

test-page-minute: $(VENV)/.installed-test  ## a share of these tests: the frame, and one area of each kind
	$(BIN)/python -m pytest tests/page/test_shell.py tests/page/test_log.py tests/page/test_vectors.py tests/page/test_metrics_table.py

conformance: $(VENV)/.installed-test
	$(BIN)/python -m tests.conformance

simulate: $(VENV)/.installed-test  ## 100,000 histories of the log's protocol, then its defects put back; HISTORIES and SEED: a share, without them
	$(BIN)/python -m tests.simulation --histories $(or $(HISTORIES),100000) --seed $(or $(SEED),0) --jobs 2
	$(if $(HISTORIES),,$(BIN)/python -m tests.simulation --defects --histories 10000 --jobs 2)

comparison: $(VENV)/.installed-test  ## generated queries, answered by the engine, by shards and by an independent evaluator (CASES, SEED)
	TRIPTYCH_COMPARISON_CASES=$(or $(CASES),10000) TRIPTYCH_COMPARISON_SEED=$(or $(SEED),20241) $(BIN)/python -m pytest -q tests/conformance/test_hypothesis_comparison.py

mutants: $(VENV)/.installed-test  ## small mistakes put into the code, sampled by SEED, COUNT of them: what share the tests notice
	$(BIN)/python -m tests.mutants --seed $(or $(SEED),1) --count $(or $(COUNT),60) --seconds $(or $(SECONDS),3600) --least $(or $(LEAST),0.8)

fuzz: $(VENV)/.installed-fuzz  ## an hour of inputs that nobody would write, for every decoder and endpoint (SECONDS, SEED, TARGET)
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),3600) --seed $(or $(SEED),1) --jobs 2 $(if $(TARGET),--target $(TARGET))

fuzz-minute: $(VENV)/.installed-fuzz
	$(BIN)/python -m tests.fuzz --seconds 60 --seed $(or $(SEED),1) --jobs 2

bench: $(VENV)/.installed-load  ## metrics beside Prometheus and VictoriaMetrics; writes docs/benchmarks/metrics.md
	$(BIN)/python -m loadtest.bench.metrics

bench-history: $(VENV)/.installed-load  ## a day of 10,000 series beside VictoriaMetrics (SCALE for a share)
	$(BIN)/python -m loadtest.bench.history $(if $(SCALE),--scale $(SCALE))

bench-smoke: $(VENV)/.installed-load
	$(BIN)/python -m loadtest.bench.smoke

.PHONY: bench-memory
bench-memory: $(VENV)/.installed-load  ## what the processes hold: before any data, after 2.4 million samples, at rest
	$(BIN)/python -m loadtest.bench.memory

bench-promql: $(VENV)/.installed-load
	$(BIN)/python -m loadtest.bench.promql

bench-ingest: $(VENV)/.installed-load
	$(BIN)/python -m loadtest.bench.ingest

bench-blocks: $(VENV)/.installed-load
	$(BIN)/python -m loadtest.bench.blocks

bench-journal: $(VENV)/.installed-load
	$(BIN)/python -m loadtest.bench.journal

bench-isolation: $(VENV)/.installed-load  ## a dashboard's p99 while samples come in
	$(BIN)/python -m loadtest.bench.isolation

bench-log: $(VENV)/.installed-load
	$(BIN)/python -m loadtest.bench.log

bench-vector: $(VENV)/.installed-load
	$(BIN)/python -m loadtest.bench.vector

bench-vector-large: $(VENV)/.installed-load  ## a million vectors beside libraries at equal recall (VECTORS, DIMENSION, STORAGE)
	$(BIN)/python -m loadtest.bench.vector_large $(if $(VECTORS),--vectors $(VECTORS)) $(if $(DIMENSION),--dimension $(DIMENSION)) $(if $(STORAGE),--storage $(STORAGE))

bench-path: $(VENV)/.installed-load  ## CPU time of small requests, by process
	$(BIN)/python -m loadtest.bench.path

bench-small: $(VENV)/.installed-load  ## latency and CPU time of small queries
	$(BIN)/python -m loadtest.bench.small_queries

bench-start: $(VENV)/.installed-load  ## the first seconds after a start, with empty and full caches of kernels, and restarts
	$(BIN)/python -m loadtest.bench.start --empty

bench-access: $(VENV)/.installed-load  ## what a token, TLS and handshakes cost in CPU time
	$(BIN)/python -m loadtest.bench.access

CHAOS_SECONDS ?= 600
CHAOS_SEED ?= 1
CHAOS_SCENARIO ?= *

chaos: $(VENV)/.installed-test  ## faults of every kind under load; needs gcc, and faketime and root for all of them
	$(BIN)/python -m tests.chaos --seed $(CHAOS_SEED) --seconds $(CHAOS_SECONDS) --scenario '$(CHAOS_SCENARIO)'

chaos-minute: $(VENV)/.installed-test  ## one round of eight of them
	$(BIN)/python -m tests.chaos --seed $(CHAOS_SEED) --minute

explore: EXPLORED := $(or $(SEED),$(shell date +%s))
explore: $(VENV)/.installed-fuzz  ## half an hour of all of these with seeds that nobody has run (SEED: with this one again)
	@echo "SEED=$(EXPLORED)"
	$(BIN)/python -m tests.simulation --histories 40000 --seed $(EXPLORED)000 --jobs 2
	$(BIN)/python -m tests.chaos --seed $(EXPLORED) --seconds 600
	$(BIN)/python -m tests.powerloss --points 2000 --seed $(EXPLORED)
	$(BIN)/python -m tests.fuzz --seconds 300 --seed $(EXPLORED) --jobs 2
	$(MAKE) comparison CASES=5000 SEED=$(EXPLORED)

load: export LOAD_SHAPE = $(or $(SHAPE),steady)
load: export LOAD_USERS = $(or $(USERS),20)
load: export LOAD_SECONDS = $(or $(SECONDS),60)
load: $(VENV)/.installed-load  ## a mixed load for a running cluster (HOST; SHAPE: steady, ramp, spike or soak; USERS, SECONDS)
	PYTHONPATH="$(CURDIR)" $(BIN)/locust -f loadtest/locustfile.py --headless --only-summary --host $(or $(HOST),http://127.0.0.1:9090)

attacks: $(VENV)/.installed-load  ## what a client notices of attacks beside it, on a cluster of its own (ONLY, SECONDS, MINUTES of mixed load)
	$(BIN)/python -m loadtest.attacks $(if $(ONLY),--only $(ONLY)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(MINUTES),--mixed $(MINUTES))

overload: $(VENV)/.installed-load  ## goodput and waits at one, two and three times the sustainable rate, on a cluster of its own (SECONDS of each run, RATE if it is known)
	$(BIN)/python -m loadtest.overload $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RATE),--rate $(RATE))

backup-drill: $(VENV)/.installed-load  ## backup and restore of 50 million samples under writes, everything compared (SCALE for a share)
	$(BIN)/python -m loadtest.backup_drill $(if $(SCALE),--scale $(SCALE))

lock: $(VENV)/.installed-release  ## renew deploy/requirements.lock for changed dependencies (UPGRADE=1: to the newest versions)
	$(BIN)/uv pip compile --universal --python-version 3.11 --extra traces --extra s3 --generate-hashes --custom-compile-command "make lock" --quiet $(if $(UPGRADE),--upgrade) pyproject.toml deploy/build.in --output-file deploy/requirements.lock

audit: $(VENV)/.installed-release  ## known vulnerabilities of what is locked; asks a database on the network, and fails without it (SERVICE: pypi or osv)
	$(BIN)/pip-audit --strict --progress-spinner off --vulnerability-service $(or $(SERVICE),pypi) --disable-pip --require-hashes --requirement deploy/requirements.lock

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
