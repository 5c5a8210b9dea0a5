# Everything below needs Python 3.11+ and make, and nothing else: the first target creates .venv.
#   make demo          the main job: elimination orders against jax.jacfwd / jax.jacrev on real inputs
#   make test          the tests (about 12 minutes on 2 cores); TESTS=path/or/args narrows them
#   make conformance   the long suites
#   make bench         the benchmarks; SUITE=name picks one, results go to benchmarks/results/local/
#   make lint format format-check typecheck docs clean

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
WORKERS ?= 2
TESTS ?=
SUITE ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help env demo test conformance bench lint format format-check typecheck docs clean

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

conformance: $(STAMP)
	XLA_FLAGS="$${XLA_FLAGS:+$$XLA_FLAGS }--xla_backend_optimization_level=0" $(BIN)/python -m pytest -n $(WORKERS) -m conformance $(TESTS)

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(SUITE)

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
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
