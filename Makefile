# minivllm: `make serve` and `make test` are all that is needed; both are safe and quick to run again.

PYTHON ?= python3
PORT   ?= 8000
# The demo model's folder, shared by `make serve` and the tests.
DEMO   := $(HOME)/.cache/minivllm-models/smollm2
MODEL  ?= $(DEMO)
NAME   ?= $(if $(filter $(DEMO),$(MODEL)),smollm2,$(MODEL))
FLAGS  ?=
# PyPI's torch for Linux on x86 carries several GB of CUDA. TORCH_INDEX may name a package index with the smaller build for
# the CPU alone: `make serve TORCH_INDEX=https://…`.
TORCH       ?= torch==2.13.0
TORCH_INDEX ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.stamps
PIP   := $(BIN)/python -m pip --disable-pip-version-check
NATIVE := $(shell find csrc -type f 2>/dev/null)

.PHONY: serve test lint format docs install clean help
.DEFAULT_GOAL := help

help:
	@echo "make serve   install, fetch the demo model, and serve it on port $(PORT)   (PORT=, MODEL=, NAME=, FLAGS=)"
	@echo "make test    install what the tests need and run all of them, with ruff and mypy"
	@echo "make docs    write docs/options.md from the options;   make install   install only"
	@echo "make lint    ruff and mypy alone;   make format   let ruff format;   make clean   remove $(VENV) and build"

serve: $(STAMP)/installed $(if $(filter $(DEMO),$(MODEL)),$(DEMO)/config.json)
	@echo
	@echo "Serving on http://localhost:$(PORT) (Ctrl-C stops it). When it is ready, ask it from another terminal:"
	@echo
	@echo "  curl http://localhost:$(PORT)/v1/chat/completions -H 'Content-Type: application/json' \\"
	@echo "    -d '{\"model\": \"$(NAME)\", \"temperature\": 0, \"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'"
	@echo
	@exec $(BIN)/minivllm serve "$(MODEL)" --served-model-name "$(NAME)" --port $(PORT) $(FLAGS)

test: $(STAMP)/tools $(DEMO)/config.json
	@echo "== Running all tests, ruff and mypy among them"
	@$(BIN)/python -m pytest $(TESTS)

lint: $(STAMP)/tools
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(STAMP)/tools
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

docs: $(STAMP)/installed
	@$(BIN)/python docs/write_options.py

install: $(STAMP)/installed

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(DEMO)/config.json: | $(STAMP)/installed
	@$(BIN)/python examples/get_demo_model.py "$(DEMO)"

$(STAMP)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "minivllm needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1 || echo missing). Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "== Making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/torch: $(STAMP)/venv
	@echo "== Installing $(TORCH) (the largest part of what is needed)"
	@$(PIP) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$(TORCH)"
	@touch $@

$(STAMP)/installed: $(STAMP)/torch pyproject.toml $(NATIVE)
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  echo "== No C++ compiler found: installing without the compiled kernels, which is much slower. On Debian: apt-get install g++"
	@$(BIN)/python -c 'import os, sysconfig as s, sys; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' || \
	  echo "== No Python headers found: installing without the compiled kernels, which is much slower. On Debian: apt-get install python3-dev"
	@echo "== Installing minivllm (compiling its CPU kernels takes about a minute)"
	@$(PIP) install --editable .
	@echo "== Installed. $$($(BIN)/minivllm collect-env | grep 'CPU kernels')"
	@touch $@

$(STAMP)/tools: $(STAMP)/installed
	@echo "== Installing what the tests need"
	@$(PIP) install 'minivllm[dev]'
	@touch $@
