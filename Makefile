# Two commands do everything on a fresh Linux machine with Python 3.11, 3.12 or 3.13:
#   make bench [ARGS="--model=vgg16"]   install, then run a benchmark
#   make test                           install, lint, type-check, test (minutes; tests/README.md has the other tiers)
SHELL := /bin/bash
# `make gate` compares with this revision, `make release` releases this tag, `make compare-peers` runs the program of PEER.
# They are variables of the shell, with the text as it was given: neither make nor the shell executes what a name holds.
# Make 4.4 expands them in the first call of the function shell, so this comes before it.
BASE ?= origin/main
TAG ?=
PEER ?=
PEER_PYTHON ?=
ROWS ?=
REPEATS ?= 5
override export PEER := $(value PEER)
override export PEER_PYTHON := $(value PEER_PYTHON)
override export ROWS := $(value ROWS)
override export REPEATS := $(value REPEATS)
override export BASE := $(value BASE)
override export TAG := $(value TAG)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Release builds and CI pin every version: make test CONSTRAINTS=constraints.txt
CONSTRAINTS ?=
# Another TensorFlow, in a fresh environment: make clean && make test TENSORFLOW=2.20
TENSORFLOW ?=
# CUDA's libraries: cuda, cuda-volta (GPUs older than Turing), or none. By default what the GPUs need. Before there is a
# driver, as in an image: make install EXTRA=cuda. CI also installs PyTorch, several GB with CUDA, for its reference loops.
EXTRA ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1 \
    | awk '/^[0-9.]+$$/ && $$1 < 7.5 { extra = "cuda-volta" } END { print extra ? extra : "cuda" }')
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) \
    $(if $(TENSORFLOW),'tensorflow==$(TENSORFLOW).*')

# Tests start hundreds of processes, each of which would compile the suite again.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=
# GATE_FLAGS are flags of `ab`, NIGHTLY_FLAGS of `sweep`.
GATE_FLAGS ?=
NIGHTLY_FLAGS ?=
BENCH_FLAGS := --model=resnet50 --num_gpus=2 --device=auto --virtual_gpus=auto --variable_update=replicated \
    --time_limit_seconds=90 --output_dir=out

.PHONY: bench compare-peers check test pytest pytest-check pytest-ci pytest-all test-slow test-seldom test-all coverage mutate faults acceptance lint typecheck \
    install install-test browser clean gate nightly dist images release
.DELETE_ON_ERROR:

bench: install
	$(BIN)/python run_bench.py $(BENCH_FLAGS) $(ARGS)

# With PEER, a clone of the repository that contains scripts/tf_cnn_benchmarks, compares with it in alternating runs, and
# prints a table of ratios (docs/performance.md); without it, compares with Keras and MirroredStrategy.
# PEER_PYTHON runs tf_cnn_benchmarks; without it, an environment is made. ROWS='towers-* start-up' selects some rows.
PEERS := $(BIN)/python run_bench.py sweep --repeats=3 --output_dir=out/peers
ifdef PEER
compare-peers: install-test
	@set -f; $(BIN)/python -m tools.peers --python="$$PEER_PYTHON" --repeats="$$REPEATS" -- "$$PEER" $$ROWS
else
compare-peers: install
	$(PEERS) $(ARGS) --variable_update=replicated,mirrored_strategy,keras_fit
	$(PEERS) $(ARGS) --variable_update=keras_fit --keras_application --model=resnet50
	@echo
	@echo "To compare with tf_cnn_benchmarks, too: git clone https://github.com/tensorflow/benchmarks PATH, outside of this"
	@echo "checkout, then make compare-peers PEER=PATH. An environment in which it still starts is made, or name one with"
	@echo "PEER_PYTHON=/path/to/env/bin/python."
endif

gate: install
	deploy/gate/run gate --base="$$BASE" $(GATE_FLAGS)

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

# Both in one session, so that no core waits for the other.
pytest-ci: install-test
	$(PYTEST) -m "not seldom"

# Also those that rotate and are slow for this commit.
test-seldom: install-test
	$(PYTEST) -m "seldom or rotates"

# Line and branch coverage of what .ci/run tests, child processes included, by package; htmlcov/ shows the lines.
coverage: install-test browser
	rm -rf .coverage .coverage.* htmlcov
	$(BIN)/coverage run -m $(PYTEST_ARGUMENTS) -m "not seldom"
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet
	@for package in benchmarks models results variable_mgr; do \
	    echo "$$package $$($(BIN)/coverage report --include="$$package/*" | tail -1)"; done
	@$(BIN)/coverage report | sed -n '1p;$$p'

test-all: install-test browser
	@$(MAKE) --no-print-directory --jobs=3 lint typecheck pytest-all

pytest-all: install-test
	$(PYTEST)

# Checks that tests notice small changes of the modules that decide. MODULE=results/gate/decision.py selects one.
MODULE ?=
mutate: $(VENV)/.installed-mutate
	$(BIN)/python -m tools.mutation $(MODULE)

# The faults of tests/reliability.md and the rows of tests/acceptance.md are marks of tests. With more MOMENTS, signals
# come at more moments of a run; PYTEST_FLAGS="-k disk" selects some.
MOMENTS ?= 40
faults: install-test
	MOMENTS=$(MOMENTS) $(PYTEST) -m fault

acceptance: install-test
	$(PYTEST) -m row

# Runs the commands whose outputs the pages show, and writes these anew: on an idle machine. PAGES=docs/start.md selects some.
PAGES ?=
.PHONY: docs docs-outputs
docs-outputs: install-test
	$(BIN)/python -m docs.outputs $(PAGES)

# Fills the generated tables of docs/ and builds the site in site/; a dead link or anchor is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m docs.generate
	$(BIN)/mkdocs build --strict --quiet

lint: install-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/hadolint Dockerfile

typecheck: install-test
	$(BIN)/mypy

# A run that takes seconds on two logical CPU devices, with which packages and images are tried.
TINY_RUN := --device=cpu --num_gpus=2 --model=trivial --batch_size=2 --num_batches=10

# Builds the source distribution and, from it, the wheel; installs the wheel in an environment of its own and trains.
dist: install-test
	rm -rf dist build/installed
	$(BIN)/python -m build
	$(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build && installed/bin/run-bench --version && installed/bin/run-bench $(TINY_RUN)

# Builds both images and trains in that for CPUs, as a user that it does not know, with a root that cannot be written.
IMAGE := cnn-train-bench
images:
	docker build --target=cuda --tag=$(IMAGE):cuda .
	docker build --target=cpu --tag=$(IMAGE):cpu .
	docker run --rm $(IMAGE):cuda --version
	docker run --rm --init --user=12345:12345 --read-only --tmpfs=/tmp $(IMAGE):cpu $(TINY_RUN)

# Checks that TAG may be released, builds dist/ and writes the release's notes.
release: install-test
	notes=$$($(BIN)/python deploy/release.py "$$TAG") && mkdir -p build && echo "$$notes" > build/notes.md
	@$(MAKE) --no-print-directory dist

# The report's page is tested in a real browser. As root on Debian it is installed; elsewhere its tests are skipped.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	    || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing Chromium ..." \
	         && { apt-get update -qq; apt-get install -y -qq chromium; } >/dev/null 2>&1; } \
	    || echo "Chromium is missing: the tests of the report's page are skipped."

install: $(VENV)/.installed
install-test: $(VENV)/.installed-test

# What is missing is one sentence, with what to install.
$(VENV)/.venv:
	@fail() { echo "$$1" >&2; exit 2; }; versions="Python 3.11, 3.12 or 3.13"; \
	    [ "$$(uname)" = Linux ] || fail "The suite needs Linux, and this is $$(uname): use a container or a virtual machine."; \
	    command -v $(PYTHON) >/dev/null || fail "There is no $(PYTHON). Install $$versions (on Debian and Ubuntu: \
	apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3.12 ..."; \
	    $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || fail "TensorFlow needs \
	$$versions, and $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 ..."; \
	    $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || fail "$(PYTHON) cannot make virtual environments. Install \
	its module venv (on Debian and Ubuntu: apt-get install python3-venv)."
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.venv setup.cfg pyproject.toml
	@echo "Installing (TensorFlow is large, so the first time takes some minutes) ..."
	$(PIP_INSTALL) -e ".$(if $(EXTRA),[$(EXTRA)])"
	@touch $@

# Includes what `install` does, so that pip resolves once.
$(VENV)/.installed-test: $(VENV)/.venv setup.cfg pyproject.toml
	@command -v git >/dev/null || { echo "The tests need git. Install it (on Debian and Ubuntu: apt-get install git)." >&2; exit 2; }
	@echo "Installing (TensorFlow is large, so the first time takes some minutes) ..."
	$(PIP_INSTALL) -e ".[test$(if $(EXTRA),$(comma)$(EXTRA))$(if $(CI),$(comma)torch)]"
	@touch $(VENV)/.installed $@

$(VENV)/.installed-mutate: $(VENV)/.installed-test
	$(PIP_INSTALL) -e ".[mutate]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-test
	$(PIP_INSTALL) -e ".[docs]"
	@touch $@

comma := ,

clean:
	rm -rf $(VENV) build dist htmlcov site *.egg-info .coverage .coverage.* .hypothesis .pytest_cache .mypy_cache .ruff_cache
