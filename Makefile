# TokenFleet on a machine with nothing but python3 and make. Everything that is fetched goes into .venv and the
# user's cache folder; stamp files in .venv say what is done, so a second run fetches nothing.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL_LOG := $(VENV)/install.log

ifneq ($(and $(MAKE_TERMOUT),$(if $(NO_COLOR),,yes)),)  # make sets MAKE_TERMOUT where stdout is a terminal
BOLD := \033[1m
CYAN := \033[36m
RED := \033[31m
OFF := \033[0m
endif

# Flags of the demo, each passed on only where the variable is set: make demo DURATION=60 TRACE=file.csv.gz
DEMO_FLAGS := $(if $(TRACE),--trace '$(TRACE)') $(if $(DURATION),--duration '$(DURATION)') \
  $(if $(RATE),--rate '$(RATE)') $(if $(SUMMARY),--summary '$(SUMMARY)') $(if $(ENGINE),--engine '$(ENGINE)')

COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
  --no-header --no-emit-index-url --no-emit-find-links --quiet

.PHONY: help
help: ## This help
	@printf '$(BOLD)TokenFleet$(OFF): an event-streaming control plane for fleets of LLM inference instances\n\n'
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  $(CYAN)make %-13s$(OFF) %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\n  make demo takes TRACE=file DURATION=seconds RATE=number SUMMARY=file ENGINE=name; they become its flags\n'

.PHONY: install
install: $(VENV)/.stamp-jars ## Make .venv, install the pinned packages, fetch Apache Kafka

.PHONY: demo
demo: install ## Run the whole loop for about 90 s and check its books
	@$(BIN)/tokenfleet demo $(DEMO_FLAGS)

.PHONY: test
test: install ## Run the whole test suite
	@$(BIN)/pytest

.PHONY: lint
lint: install ## Ruff, mypy and the import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: schemas
schemas: install ## Export JSON Schemas and AsyncAPI from the event models
	@$(BIN)/tokenfleet schemas export

.PHONY: requirements
requirements: $(VENV)/.stamp-packages ## Compile the requirement files and the list of Kafka's jars anew
	@$(COMPILE) --extra streams --extra sink --extra local --extra sim --extra sources --output-file requirements/runtime.txt
	@$(COMPILE) --all-extras --output-file requirements/dev.txt
	@$(BIN)/python -m infra.kafka.jars

.PHONY: clean
clean: ## Remove .venv, caches and the stack's data (the fetched jars stay in the user's cache)
	@rm -rf $(VENV) .tokenfleet .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-venv:
	@command -v $(PYTHON) > /dev/null || { \
	  printf '$(RED)There is no $(PYTHON) here; install Python 3.11 or newer, or name one: make PYTHON=...$(OFF)\n' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  printf '$(RED)%s is too old; TokenFleet needs Python 3.11 or newer: make PYTHON=python3.12$(OFF)\n' \
	    "$$($(PYTHON) --version)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) > /dev/null || { \
	  printf '$(RED)$(PYTHON) cannot make a virtual environment; install its venv module (Debian: apt install python3-venv).$(OFF)\n' >&2; \
	  exit 1; }
	@touch $@

$(VENV)/.stamp-packages: requirements/dev.txt pyproject.toml | $(VENV)/.stamp-venv
	@printf '$(CYAN)Installing the pinned packages into $(VENV), a minute or two the first time$(OFF)\n'
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input --retries 2 --require-hashes \
	    -r requirements/dev.txt > $(INSTALL_LOG) 2>&1 || { \
	  if grep -qiE 'NewConnectionError|ConnectTimeout|ProxyError|ReadTimeout|NameResolution|Max retries|No matching distribution' \
	      $(INSTALL_LOG); then \
	    printf '$(RED)The Python package index cannot be reached, so the packages are not installed; connect to the network (or set PIP_INDEX_URL to a mirror) and run make install again. Details: $(INSTALL_LOG)$(OFF)\n' >&2; \
	  else \
	    printf '$(RED)The packages cannot be installed: %s. Details: $(INSTALL_LOG)$(OFF)\n' \
	      "$$(grep '^ERROR' $(INSTALL_LOG) | head -n 1)" >&2; \
	  fi; exit 1; }
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input --quiet --no-deps --no-build-isolation \
	    -e . >> $(INSTALL_LOG) 2>&1 || { \
	  printf '$(RED)TokenFleet itself cannot be installed into $(VENV). Details: $(INSTALL_LOG)$(OFF)\n' >&2; exit 1; }
	@touch $@

$(VENV)/.stamp-jars: infra/kafka/jars.json $(VENV)/.stamp-packages
	@$(BIN)/tokenfleet doctor --fix
	@touch $@
