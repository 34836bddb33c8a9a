# Two commands do everything: `make book` and `make test`. Each sets up what it needs, and reuses it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.residlab-ready

.DEFAULT_GOAL := help
.PHONY: help setup data book test serve lint format pairs clean
.DELETE_ON_ERROR:

help:  ## show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The stamp is written last, so that an interrupted installation is taken up again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else "Python 3.11 to 3.13 is needed, this is %d.%d; name one with PYTHON=..." % v)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing residlab and its pinned requirements into $(VENV) (a few minutes, once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^pip==' constraints.txt)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(READY)  ## install into .venv, once

data: $(READY)  ## fetch texts and weights, once
	@$(BIN)/residlab fetch

book: data  ## execute the chapters and render the book
	@$(BIN)/residlab build --strict

test: data  ## execute, render and check everything
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

serve: book  ## show the book on this machine
	@$(BIN)/residlab serve

lint: $(READY)  ## ruff, types, walls between packages, paired notebooks
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m pytest -q tests/compendium/test_pairs.py

format: pairs  ## format the code, that of chapters too
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/residlab pair

pairs: $(READY)  ## bring each chapter's .md and .ipynb in step
	@$(BIN)/residlab pair

clean:  ## remove what was built (the environment and fetched data stay)
	rm -rf _build executed .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
