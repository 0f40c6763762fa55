# make            what can be done
# make run PROMPT="Why is the sky blue?"
# make test
#
# Works from a clean clone with Python 3.10+, a C/C++ compiler and make. Everything lands in .venv; compiled wheels and
# models are kept in the user's cache folder, so that a second clone is quick. PYTHON=python3.12 picks the interpreter
# of a new .venv; CMAKE_ARGS="-DGGML_CUDA=on" reaches the engine's build.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help install dev run test lint types bench clean FORCE

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && echo "$$p" && break; done)
PROMPT ?= Why is the sky blue?
MODEL ?=
ARGS ?=
PREFIX_ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# A prompt may hold quotes, dollars and backticks. It therefore reaches the command through the environment, never as
# text of a shell line, and with $(value …), which keeps make from expanding the dollars in it.
export MAKE_RUN_PROMPT := $(value PROMPT)
export MAKE_RUN_MODEL := $(value MODEL)

help:
	@echo 'make run PROMPT="…"    set up, fetch the default model, answer (MODEL=… for another one; stdin is read too)'
	@echo 'make install           set up: .venv, the engine (compiled once, minutes), llmcli in it'
	@echo 'make test              set up, then lint, types and all tests (ARGS="-k name" for some of them)'
	@echo 'make lint | types      one of them'
	@echo 'make bench             speed (ARGS=--help), then the prefix store (PREFIX_ARGS=--quick), 15 minutes'
	@echo 'make clean             remove .venv and caches of tools; kept wheels and models stay'

# ---- set-up: one stamp per step, so that a second call starts at once --------------------------------------------

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo 'setup: Python 3.10 or later is needed; name it: make PYTHON=python3.12' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "setup: $(PYTHON) is not Python 3.10 or later" >&2; exit 1; }
	@echo "setup: making $(VENV) with $$("$(PYTHON)" --version)" >&2
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@

# CMAKE_ARGS may have changed since the stamp was made: then the script looks for itself.
ifneq ($(strip $(value CMAKE_ARGS)),)
$(VENV)/.engine: FORCE
endif
$(VENV)/.engine: tools/build_engine.py pyproject.toml | $(VENV)/.made
	@$(PY) tools/build_engine.py </dev/null
	@touch $@

# Order-only on the engine: a new engine does not change what is installed of llmcli.
$(VENV)/.installed: pyproject.toml | $(VENV)/.engine
	@echo 'setup: installing llmcli and what it needs' >&2
	@$(PY) -m pip install --quiet --editable . </dev/null >&2
	@# pip compiles what it copies, and an editable install copies nothing: where Python may not write byte code
	@# (PYTHONDONTWRITEBYTECODE, a read-only checkout) every start would compile llmcli anew, 0.2 s.
	@$(PY) -m compileall -q base hardware models cache_store sessions engine quant bench cli
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.installed
	@echo 'setup: installing what the tests need' >&2
	@$(PY) -m pip install --quiet --editable '.[dev]' </dev/null >&2
	@touch $@

install: $(VENV)/.installed

dev: $(VENV)/.dev

# ---- use ---------------------------------------------------------------------------------------------------------

run: $(VENV)/.installed
	@$(VENV)/bin/llmcli run $${MAKE_RUN_MODEL:+-m "$$MAKE_RUN_MODEL"} -- "$$MAKE_RUN_PROMPT"

test: $(VENV)/.dev lint types
	@echo 'test: pytest'
	@$(PY) -m pytest $(ARGS)

lint: $(VENV)/.dev
	@echo 'test: ruff check, ruff format --check'
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check .

types: $(VENV)/.dev
	@echo 'test: mypy'
	@$(PY) -m mypy --no-error-summary

bench: $(VENV)/.installed
	@$(PY) benchmarks/speed.py $(ARGS)
	@$(PY) benchmarks/prefix.py $(PREFIX_ARGS)

clean:
	@echo 'clean: $(VENV), tool caches, build folders'
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

FORCE:
