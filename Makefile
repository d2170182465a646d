# Two commands do everything on a fresh machine with Python 3.11+:
#   make bench [ARGS="--model=vgg16"]   install, then run a benchmark
#   make test                           install, lint, type-check, test (minutes; tests/README.md has the other tiers)
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Release builds and CI pin every version: make test CONSTRAINTS=constraints.txt
CONSTRAINTS ?=
EXTRA := $(shell command -v nvidia-smi >/dev/null 2>&1 && echo cuda)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

ARGS ?=
# `make gate` compares with this revision. GATE_FLAGS are flags of `ab`, NIGHTLY_FLAGS of `sweep`.
BASE ?= origin/main
GATE_FLAGS ?=
NIGHTLY_FLAGS ?=
BENCH_FLAGS := --model=resnet50 --num_gpus=2 --device=auto --virtual_gpus=auto --variable_update=replicated \
    --time_limit_seconds=90 --output_dir=out

.PHONY: bench compare-peers check test pytest pytest-check test-slow test-seldom test-all coverage mutate lint typecheck \
    install install-test browser clean gate nightly
.DELETE_ON_ERROR:

bench: install
	$(BIN)/python run_bench.py $(BENCH_FLAGS) $(ARGS)

# Compares with Keras and MirroredStrategy, and explains how to compare with tf_cnn_benchmarks.
PEERS := $(BIN)/python run_bench.py sweep --repeats=3 --output_dir=out/peers
compare-peers: install
	$(PEERS) $(ARGS) --variable_update=replicated,mirrored_strategy,keras_fit
	$(PEERS) $(ARGS) --variable_update=keras_fit --keras_application --model=resnet50
	@echo
	@echo "tf_cnn_benchmarks is not part of this suite: it is the folder scripts/tf_cnn_benchmarks of the repository"
	@echo "tensorflow/benchmarks on GitHub. Run it with the same flags (--model, --batch_size, --num_gpus,"
	@echo "--variable_update, --data_format) in an environment with a TensorFlow that it supports: its own README says which."

gate: install
	deploy/gate/run gate --base="$(BASE)" $(GATE_FLAGS)

nightly: install
	deploy/gate/run nightly $(NIGHTLY_FLAGS)

# One worker per core. PYTEST_FLAGS are yours: make test PYTEST_FLAGS="-k sweep --durations=20"
PYTEST_FLAGS ?=
PYTEST_ARGUMENTS = pytest --numprocesses=auto --maxprocesses=8 $(PYTEST_FLAGS)
PYTEST = $(BIN)/python -m $(PYTEST_ARGUMENTS)
DEFAULT := not slow and not seldom

# The edit loop: nothing that imports TensorFlow or starts processes.
check: install-test
	@$(MAKE) --no-print-directory --jobs=2 lint typecheck pytest-check

test: install-test browser
	@$(MAKE) --no-print-directory --jobs=3 lint typecheck pytest

pytest: install-test
	$(PYTEST) -m "$(DEFAULT)"

pytest-check: install-test
	$(PYTEST) -m "$(DEFAULT) and not process and not gpu" --no-tensorflow -r fE

test-slow: install-test
	$(PYTEST) -m "slow and not seldom"

# One after the other, because several of these tests measure.
test-seldom: install-test
	$(PYTEST) -m seldom --numprocesses=0

# Line and branch coverage of what .ci/run tests, child processes included, by package; htmlcov/ shows the lines.
coverage: install-test browser
	rm -rf .coverage .coverage.* htmlcov
	$(BIN)/coverage run -m $(PYTEST_ARGUMENTS) -m "not seldom"
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet
	@for package in benchmarks models results variable_mgr; do \
	    echo "$$package $$($(BIN)/coverage report --include="$$package/*" | tail -1)"; done
	@$(BIN)/coverage report | sed -n '1p;$$p'

test-all: test test-slow test-seldom

# Checks that tests notice small changes of the modules that decide. MODULE=results/gate/decision.py selects one.
MODULE ?=
mutate: $(VENV)/.installed-mutate
	$(BIN)/python tests/mutation.py $(MODULE)

lint: install-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

typecheck: install-test
	$(BIN)/mypy

# The report's page is tested in a real browser. As root on Debian it is installed; elsewhere its tests are skipped.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	    || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing Chromium ..." \
	         && { apt-get update -qq; apt-get install -y -qq chromium; } >/dev/null 2>&1; } \
	    || echo "Chromium is missing: the tests of the report's page are skipped."

install: $(VENV)/.installed
install-test: $(VENV)/.installed-test

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1). Run: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.venv setup.cfg pyproject.toml
	@echo "Installing (TensorFlow is large, so the first time takes some minutes) ..."
	$(PIP_INSTALL) -e ".$(if $(EXTRA),[$(EXTRA)])"
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP_INSTALL) -e ".[test$(if $(EXTRA),$(comma)$(EXTRA))]"
	@touch $@

$(VENV)/.installed-mutate: $(VENV)/.installed-test
	$(PIP_INSTALL) -e ".[mutate]"
	@touch $@

comma := ,

clean:
	rm -rf $(VENV) build dist htmlcov *.egg-info .coverage .coverage.* .hypothesis .pytest_cache .mypy_cache .ruff_cache
