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

$(VENV)/.requirements: requirements/build.txt requirements/run.txt requirements/dev.txt requirements/validate.txt requirements/compiler.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "TorchNeuron needs Python 3.10 or newer; name one with PYTHON=...")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(NO_AUTOLOAD) $(PY) -m pip install --disable-pip-version-check -q -r requirements/build.txt -r requirements/run.txt -r requirements/dev.txt \
	  -r requirements/validate.txt -r requirements/compiler.txt
	@touch $@

# The install is a .pth file and the entry points, nothing is compiled here; so an edit of a Python file needs no new install.
$(VENV)/.installed: $(VENV)/.requirements pyproject.toml
	$(NO_AUTOLOAD) $(PY) -m pip install --disable-pip-version-check -q --no-build-isolation --no-deps -Cwheel.cmake=false -e .
	@echo "$(CURDIR)/torch_neuronx/nki/names" > "$$($(NO_AUTOLOAD) $(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchneuron_nki.pth"
	@touch $@

build: ## compile what changed in csrc/ into torch_neuronx/
	@mkdir -p $(BUILD)
	@flock build/.lock $(MAKE) --no-print-directory build-locked TARGET=all

# With the lock held. ninja runs cmake again by itself when CMakeLists.txt or the list of sources changes.
.PHONY: build-locked
build-locked:
	@test -f $(BUILD)/build.ninja || \
	  $(NO_AUTOLOAD) cmake -S . -B $(BUILD) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DTORCH_NEURONX_IN_PLACE=ON
	@$(NO_AUTOLOAD) ninja -C $(BUILD) -j$(JOBS) -k 0 $(TARGET)

quickstart: setup ## train a small GPT on `neuron` on the text of Python's standard library (about a minute)
	$(PY) examples/train_gpt.py

test: setup test-cpp ## the tests that CI runs
	$(PY) -m pytest -m "not full"

test-full: setup test-cpp ## all tests
	$(PY) -m pytest

.PHONY: test-cpp
test-cpp: $(VENV)/.requirements ## the runtime's C++ tests alone
	@mkdir -p $(BUILD)
	@flock build/.lock $(MAKE) --no-print-directory build-locked TARGET=runtime_tests
	$(BUILD)/runtime_tests

.PHONY: upstream
upstream: setup ## PyTorch's own test files on neuron and cpu: make upstream PYTORCH=<checkout> [ARGS="--files test_torch"]
	@test -n "$(PYTORCH)" || { echo "Name a checkout of PyTorch: make upstream PYTORCH=../pytorch"; exit 2; }
	$(PY) -m tests.upstream.checkout $(PYTORCH) $(ARGS)

.PHONY: standin-sdk
standin-sdk: setup standin-nrt ## stand-ins for neuronx-cc and libnrt, for machines without AWS's SDK: writes build/standin_sdk/env.sh
	$(PY) -m tests.standin_sdk.install

.PHONY: standin-nrt
standin-nrt:
	@mkdir -p $(BUILD)
	@flock build/.lock $(MAKE) --no-print-directory build-locked TARGET=standin_sdk

bench: setup ## neuron against cpu: one table
	$(PY) -m benchmarks

CXX_FILES = $(shell find csrc tests/cpp -name '*.cpp' -o -name '*.h')

lint: $(VENV)/.requirements ## ruff, mypy, clang-format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)

.PHONY: format
format: $(VENV)/.requirements ## let ruff and clang-format rewrite what lint would refuse
	$(PY) -m ruff check --fix -q .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(CXX_FILES)

lint-cpp: setup ## clang's warnings on all of csrc (needs clang++)
	find csrc -name '*.cpp' | xargs -P $(JOBS) -n 1 clang++ -fsyntax-only -std=c++20 -Wall -Wextra -Werror -I. \
	  $$($(NO_AUTOLOAD) $(PY) -c "import torch.utils.cpp_extension as e; print(*('-isystem' + p for p in e.include_paths()))") \
	  -isystem$$($(PY) -c "import sysconfig; print(sysconfig.get_paths()['include'])")

sanitize: $(VENV)/.requirements ## the runtime's C++ tests under ASan+UBSan, then under TSan
	@mkdir -p build
	@for kind in address,undefined thread; do \
	  dir=build/sanitize-$${kind%%,*}; \
	  $(NO_AUTOLOAD) cmake -S . -B $$dir -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DTORCH_NEURONX_SANITIZE=$$kind >/dev/null && \
	  ninja -C $$dir -j$(JOBS) --quiet runtime_tests && echo "== -fsanitize=$$kind" && LSAN_OPTIONS=suppressions=tests/cpp/lsan.supp $$dir/runtime_tests || exit 1; \
	done

clean: ## remove what was built; .venv stays
	rm -rf build out torch_neuronx/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
