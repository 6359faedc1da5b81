.DEFAULT_GOAL := help
.PHONY: help demo try test check format unit lab lab-test lab-down proto lock clean

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

help: ## Show this help
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.ready ## See the whole job on simulated hosts and a simulated cluster; needs Python only
	$(BIN)/gpunode demo

try: lab ## See the main job: two bare hosts of a real cluster become verified GPU nodes
	$(BIN)/gpunode provision .lab/inventory.yaml --yes
	@echo "It stays up: try $(BIN)/gpunode verify .lab/inventory.yaml; \`make lab-down\` removes it."

test: check lab-test ## All tests; what this machine cannot run is skipped and named at the end

check: $(VENV)/.ready ## Format, lint, types, import contracts, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -m "not lab and not gpu"

unit: $(VENV)/.ready ## Unit and agent tests only
	$(BIN)/pytest -m "not lab and not gpu"

lab-test: lab ## Tests on the real cluster of `make lab`, and on a real GPU where there is one
	$(BIN)/pytest -m "lab or gpu" --timeout 900

# Exit status 77: this machine cannot run the lab. Its tests then skip and say why.
lab: $(VENV)/.ready ## Bring the lab up: control plane, two hosts, apt repository; safe to repeat
	@mkdir -p .lab; $(BIN)/python -m tests.lab up || { status=$$?; test $$status = 77 || exit $$status; }

lab-down: ## Stop the lab and remove what it made, but its cache
	$(PYTHON) -m tests.lab down

format: $(VENV)/.ready ## Format the code and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(VENV)/.ready ## Generate the device plugin's messages from its .proto
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gpunode/deviceplugin/*.proto

lock: $(VENV)/.ready ## Resolve every dependency again, with hashes
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url \
	  --python-version 3.10 --all-extras --group dev pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --no-header --no-emit-index-url \
	  --python-version 3.11 gpunode/deviceplugin/requirements.in -o gpunode/deviceplugin/requirements.lock

$(VENV)/.ready: requirements-dev.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

clean: ## Remove what make made in this checkout, but the lab
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build
