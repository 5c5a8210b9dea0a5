# Everything below needs Python 3.11+ and make, and nothing else: the first target creates .venv.
#   make demo          the main job: elimination orders against jax.jacfwd / jax.jacrev on real inputs
#   make test          the tests, of many cases and of what takes seconds a share (10 to 20 minutes on 2 cores); TESTS=path/or/args narrows
#                      them, TESTS="-m '' path" runs all of a file
#   make conformance   the other cases and the long suites (installs the extra `conformance` first)
#   make peers         the suites of folx and asdex on this library, 5 to 10 minutes each; PEER=folx picks one (Python 3.12)
#   make bench         the benchmarks; SUITE=name picks one, ARGS adds options, results go to benchmarks/results/local/;
#                      WITH=peers measures against folx, asdex and sparsejac as well (the environment of make peers)
#   make lint format format-check typecheck docs clean

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
WORKERS ?= 2
TESTS ?=
SUITE ?=
ARGS ?=
WITH ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
CONFORMANCE_STAMP := $(VENV)/.installed-conformance
PEERS_VENV ?= .venv-peers
PEERS_PYTHON ?= python3.12
PEERS_STAMP := $(PEERS_VENV)/.installed
PEER ?= folx asdex
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help env demo test conformance peers bench lint format format-check typecheck docs clean

help:
	@sed -n 's/^#   //p' Makefile

env: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $(PYTHON) is older or absent. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Reinstalls when pyproject.toml or constraints.txt is newer than the last installation.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e ".[$(EXTRAS)]"
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(PIP_INSTALL) -e ".[docs]"
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m benchmarks.demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) $(TESTS)

$(CONFORMANCE_STAMP): $(STAMP)
	$(PIP_INSTALL) -e ".[conformance]"
	@touch $@

conformance: $(CONFORMANCE_STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -m conformance $(TESTS)

# An environment of its own: asdex needs one exact JAX (see pyproject.toml), which constraints.txt is not.
$(PEERS_STAMP): pyproject.toml
	$(PEERS_PYTHON) -m venv $(PEERS_VENV) || { echo "The peers need Python 3.12. Try: make PEERS_PYTHON=path $(MAKECMDGOALS)"; exit 1; }
	$(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[peers]"
	@touch $@

peers: $(PEERS_STAMP)
	@status=0; for peer in $(PEER); do $(PEERS_VENV)/bin/python -m tests.peers $$peer || status=1; done; exit $$status

bench: $(if $(filter peers,$(WITH)),$(PEERS_STAMP),$(STAMP))
	$(if $(filter peers,$(WITH)),$(PEERS_VENV)/bin,$(BIN))/python -m benchmarks $(SUITE) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

format-check: $(STAMP)
	$(BIN)/ruff format --check .

typecheck: $(STAMP)
	$(BIN)/mypy

docs: $(DOCS_STAMP)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(PEERS_VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
