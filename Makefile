.DEFAULT_GOAL := help
.PHONY: help check format test unit lab lab-down proto lock clean

VENV := .venv
BIN := $(VENV)/bin
# What CI and people run is the same; CI adds nothing of its own.
PYTHON ?= python3

help: ## Show this help
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: requirements-dev.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

check: $(VENV)/.ready ## Format, lint, types, import contracts, unit tests; under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -m "not lab and not gpu"

format: $(VENV)/.ready ## Format the code and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit: $(VENV)/.ready ## Unit and agent tests only
	$(BIN)/pytest -m "not lab and not gpu"

clean: ## Remove what make made in this checkout
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build
