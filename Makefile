.DEFAULT_GOAL := help
.PHONY: help demo try test check types contracts format quick unit programs sim storm gpu lab lab-test on-lab off-lab lab-matrix lab-down proto lock reference picture docs dist clean

# Tests start hundreds of Pythons: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

help: ## Show this help
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## See the whole job on simulated hosts and a simulated cluster; needs Python only
	$(BIN)/gpunode demo

try: lab ## See the main job: two bare hosts of a real cluster become verified GPU nodes
	$(BIN)/gpunode provision .lab/inventory.yaml --yes
	@echo "It stays up: try $(BIN)/gpunode verify .lab/inventory.yaml; \`make lab-down\` removes it."

test: ALL := 1
test: check ## All tests that need Python only: check, a release, the simulation, and the reports in a browser where there is one
	$(PYTEST) -m "not lab and not gpu and not openssh and (release or browser)" tests/browser tests/unit/test_docs.py tests/unit/test_release.py
	@$(MAKE) --no-print-directory sim

# uv is ten times as fast, but only pip reads pip.conf. pip does not read [tool.uv], so it takes the lock as it is.
PIP := $(BIN)/pip --quiet --disable-pip-version-check
UV := VIRTUAL_ENV=$(VENV) $(BIN)/uv pip --quiet --system-certs

# Most tests wait more than they compute. A file's tests stay in one process, in their order (tests/workers.py). WORKERS=0: one by one.
WORKERS ?= $(PROCESSES)
PROCESSES := 6
PYTEST = $(BIN)/pytest --workers $(WORKERS)
QUICK := -m "not lab and not gpu and not browser and not openssh and not release"

check: $(VENV)/.ready ## Before each commit: format, lint, types, import contracts, unit tests of what has changed; ALL=1 for all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory -j types contracts quick ALL=$(ALL)

types: $(VENV)/.ready
	# The demo also runs on macOS.
	$(BIN)/mypy gpunode --platform darwin --cache-dir .mypy_cache/darwin & other=$$!; $(BIN)/mypy && wait $$other

contracts: $(VENV)/.ready
	$(BIN)/lint-imports --no-logo

quick: $(VENV)/.ready
	$(PYTEST) $(QUICK) --unchanged=$(if $(ALL),run,skip) $(addprefix --ignore tests/,sim lab browser gpu)

unit: $(VENV)/.ready ## Unit tests only
	$(PYTEST) $(QUICK) tests/unit

programs: $(VENV)/.ready ## Tests of what runs on hosts and in the cluster: agent, device plugin, extender, acceptance
	$(PYTEST) $(QUICK) $(addprefix --ignore tests/,unit sim lab browser gpu)

sim: $(VENV)/.ready ## Tests on simulated hosts and a simulated cluster; needs Python only
	$(PYTEST) -m "not lab and not gpu and not storm" tests/sim

# Hosts, kills, and how many may be disturbed at once; a fourth word is the seed of the random steps.
STORM ?= 100 50 8

storm: $(VENV)/.ready ## Kill a run's operator again and again on many simulated hosts with jobs, and 5,000 random schedules of shares; takes long
	SCHEDULES=5000 $(BIN)/pytest -q tests/share/test_binding.py tests/share/test_elsewhere.py tests/share/test_waiting.py
	$(BIN)/python bench/kills.py $(STORM)

gpu: $(VENV)/.ready ## Everything that needs a real GPU, on this machine's, in some minutes; prints its block for docs/support.md
	$(BIN)/python -m tests.gpu_block

# The number of labs for parallel tests; fewer if the machine has no room for them.
lab-test lab-matrix: LABS := 3
lab-test: lab ## Tests on the real cluster of `make lab`, with OpenSSH's own server, and on a real GPU where there is one
	@$(MAKE) --no-print-directory -j on-lab off-lab

on-lab: $(VENV)/.ready
	$(BIN)/pytest --workers $$($(BIN)/python -m tests.lab count) -m "lab and not matrix" --timeout 900

# It computes while tests on labs wait.
off-lab: $(VENV)/.ready
	$(BIN)/pytest --workers 1 -m "(gpu or browser or openssh or storm) and not lab and not matrix" --timeout 900

# Of a commit that is checked out as it is. ROWS="dnf .run": only those rows whose name has one of these words. By the
# environment: names of rows have apostrophes.
export ROWS :=
lab-matrix: lab ## Configurations that are too long for `make test`; writes how they ended into docs/support.md
	$(BIN)/python -m tests.lab.matrix $$ROWS

LABS := 1
# Exit status 77: this machine cannot run the lab. Its tests then skip and say why.
lab: $(VENV)/.ready ## Bring the lab up: control plane, two hosts, apt repository; safe to repeat
	@mkdir -p .lab; $(BIN)/python -m tests.lab up --labs $(LABS) || { status=$$?; test $$status = 77 || exit $$status; }

lab-down: ## Stop the lab and remove everything except its cache
	$(PYTHON) -m tests.lab down

format: $(VENV)/.ready ## Format the code and fix what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(VENV)/.ready ## Generate the messages of the simulated and the fake kubelets from their .proto
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gpunode/sim/node/*.proto tests/deviceplugin/*.proto

lock: $(VENV)/.ready ## Resolve every dependency again, with hashes
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url \
	  --python-version 3.10 --group dev pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url \
	  --python-version 3.10 --constraint requirements-dev.lock pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --no-header --no-emit-index-url \
	  --python-version 3.11 gpunode/deviceplugin/requirements.in -o gpunode/deviceplugin/requirements.lock

reference: $(VENV)/.ready ## Write docs/reference and docs/support.md out of the code
	$(BIN)/python -m tests.reference
	$(BIN)/python -m tests.support

picture: $(VENV)/.ready ## Write docs/run.svg, the README's picture, out of a demo; takes a minute
	$(BIN)/python -m tests.picture

SITE := build/site
REPOSITORY := https://github.com/gpunode/gpunode/blob/main

# A link that leaves docs/ leads to the repository. --strict: a link to a page or section that is not there ends the build.
docs: $(VENV)/.ready ## The documents as a site, in build/site/html; needs no network
	@rm -rf $(SITE) && mkdir -p $(SITE) && cp -r docs zensical.toml $(SITE)/
	@sed -i 's#](\.\./#](../../#' $(SITE)/docs/*.md && sed -i 's#](\.\./\.\./#]($(REPOSITORY)/#g' $$(find $(SITE)/docs -name '*.md')
	@cd $(SITE) && $(CURDIR)/$(BIN)/zensical build --strict

DIST := dist

dist: $(VENV)/.ready ## A release: wheel, sdist, man pages and completion, locks, SBOMs and SHA256SUMS, in dist/
	@rm -rf $(DIST) && mkdir -p $(DIST)
	$(BIN)/hatchling build -d $(DIST)
	cp requirements.lock $(DIST)/
	$(BIN)/python -m tests.manual $(DIST)/gpunode-share.tar.xz
	$(BIN)/cyclonedx-py requirements --no-validate --output-reproducible --pyproject pyproject.toml -o $(DIST)/gpunode.cdx.json requirements.lock
	$(BIN)/cyclonedx-py requirements --no-validate --output-reproducible -o $(DIST)/gpunode-deviceplugin.cdx.json gpunode/deviceplugin/requirements.lock
	cd $(DIST) && sha256sum * >SHA256SUMS

# Each step is announced, as each may take minutes on a busy machine. What uv reports is shown only where pip, too, fails.
define install
	@echo "Set-up, once, in $(VENV). It takes one to three minutes, several times that on a busy machine."
	@echo "  1 of 4: a virtual environment; about 5 s"
	@$(PYTHON) -m venv $(VENV)
	@echo "  2 of 4: uv, which installs faster than pip; about 5 s"
	@sed -n '/^uv==/,/[^\]$$/p' requirements-dev.lock >$(VENV)/uv.lock
	@$(PIP) install --require-hashes -r $(VENV)/uv.lock
	@echo "  3 of 4: $$(grep -c '^[a-z].*==' $(1)) packages of $(1); 10 to 90 s"
	@$(UV) install --require-hashes -r $(1) 2>$(VENV)/uv.log || \
	  $(PIP) install --require-hashes --no-deps -r $(1) || { cat $(VENV)/uv.log; exit 1; }
	@echo "  4 of 4: gpunode; about 10 s"
	@$(PIP) install --no-deps $(2) -e .
endef

$(VENV)/.demo: requirements.lock pyproject.toml
	$(call install,requirements.lock)
	@touch $@

$(VENV)/.ready: requirements-dev.lock pyproject.toml
	$(call install,requirements-dev.lock,--no-build-isolation)
	@touch $@ $(VENV)/.demo

clean: ## Remove the build outputs of this checkout, but not the lab
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build
