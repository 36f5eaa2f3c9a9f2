# The two commands of the README are `make serve` and `make test`; both set themselves up.
# ARGS is passed on: make test ARGS="tests/unit -x", make serve ARGS="--port 8001".

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
  $(shell $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := src/slipstream/kernels/build.py $(wildcard src/slipstream/kernels/csrc/*)
ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install serve test check lint bench docs docs-check fmt clean

help:  ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## Make .venv with Slipstream and its tools

$(STAMP): pyproject.toml setup.py constraints.txt $(KERNELS)
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer was found" >&2; \
	  echo "hint: install one, or name it: make install PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

serve: install  ## Serve the default model and print how to talk to it
	$(BIN)/slipstream serve $(ARGS)

test: install  ## Run the tests
	$(BIN)/pytest $(ARGS)

check: lint docs-check test  ## Format, lint, types, imports, generated docs, tests

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install  ## Measure speculation off against on
	$(BIN)/slipstream bench speculation $(ARGS)

docs: install  ## Write docs/reference from the code
	$(BIN)/python -m docs.generate

docs-check: install
	$(BIN)/python -m docs.generate --check

fmt: install  ## Format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove .venv and all caches
	rm -rf $(VENV) build dist src/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
