# `make help` lists the targets. A fresh machine needs Python 3.10+ with venv, g++ (C++20), make and git; the rest comes with `make setup`.
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
PY := $(VENV)/bin/python
BUILD := build/dev

# The build and the tools must work while the backend itself is broken, so they do not load it.
NO_AUTOLOAD := TORCH_DEVICE_BACKEND_AUTOLOAD=0
# cmake and ninja come as wheels; prefer them to the machine's own.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup build quickstart test test-full bench lint lint-cpp sanitize clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

setup: $(VENV)/.installed ## create .venv, install what is pinned in requirements/, build; quick when all is there
	@$(MAKE) --no-print-directory build

$(VENV)/.requirements: requirements/build.txt requirements/run.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "TorchNeuron needs Python 3.10 or newer; name one with PYTHON=...")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(NO_AUTOLOAD) $(PY) -m pip install --disable-pip-version-check -q -r requirements/build.txt -r requirements/run.txt -r requirements/dev.txt
	@touch $@

# The install is a .pth file and the entry points, nothing is compiled here; so an edit of a Python file needs no new install.
$(VENV)/.installed: $(VENV)/.requirements pyproject.toml
	$(NO_AUTOLOAD) $(PY) -m pip install --disable-pip-version-check -q --no-build-isolation --no-deps -Cwheel.cmake=false -e .
	@touch $@

build: ## compile what changed in csrc/ into torch_neuronx/
	@mkdir -p $(BUILD)
	@flock build/.lock $(MAKE) --no-print-directory build-locked

.PHONY: build-locked
build-locked:
	@test -f $(BUILD)/build.ninja || \
	  $(NO_AUTOLOAD) cmake -S . -B $(BUILD) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DTORCH_NEURONX_IN_PLACE=ON
	@$(NO_AUTOLOAD) ninja -C $(BUILD) -j$(JOBS)
