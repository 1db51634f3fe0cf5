# Makefile: sets up tools in .venv, builds with Meson, and runs the tests, the demo and the benches.
# SPDX-License-Identifier: Apache-2.0
#
# It needs a C compiler, make and Python 3.11 or newer with pip; no root.
#   make test                 everything; ends with `N passed, N failed`
#   make demo                 a real model's cache saved, proved, loaded and continued
#   make demo MODEL=folder    the same with a local causal model
#   make demo PYTHON=path     with the torch and transformers that this interpreter has
#   make demo-kinds           caches of two real models, of several kinds, continued exactly
#   make bench                the figures in README.md
#   make build                the library and the kvc tool, in build/
#   make tidy format          hold the rules of tests/tidy.py; lay out the sources
#   make clean                remove the builds;  `make distclean` the virtual environments too

SHELL = /bin/sh
.DELETE_ON_ERROR:
.PHONY: all build test demo demo-kinds bench tidy format clean distclean check-python

PYTHON ?= python3
VENV := .venv
VENV_457 := .venv-4.57
VENV_DEMO := .venv-demo
BUILD := build
RESULTS := build-check/results
MESON_REPORT := $(BUILD)/meson-logs/testlog.junit.xml
NAMES := meson pytest adapter-4.57
MODEL ?=
DEMO_FLAGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE := 1
ROOT := $(CURDIR)
TOOLS_PATH := $(ROOT)/$(VENV)/bin:$(PATH)

# What the wheel is made of.
SOURCES := $(shell find include src tools python meson.build meson_options.txt pyproject.toml \
	tests/meson.build -type f ! -name '*.pyc' 2>/dev/null)

all: build

# ---- Virtual environments ------------------------------------------------------------------------

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: $(PYTHON) is not Python 3.11 or newer;" \
	         "name one, as in: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }

# Some systems ship Python without what venv needs to install pip; then pip installs itself there.
define make_venv
$(PYTHON) -m venv --clear $(1) >/dev/null 2>&1 || { \
    $(PYTHON) -m venv --clear --without-pip $(1) && \
    $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
endef

$(VENV)/tools.stamp: tests/requirements.txt $(wildcard examples/requirements*.txt) | check-python
	@echo "setting up $(VENV)"
	@$(call make_venv,$(VENV))
	@$(VENV)/bin/python -m pip install --quiet -r tests/requirements.txt
	@$(VENV)/bin/python -m pip install --quiet --no-deps -r examples/requirements-nodeps.txt
	@touch $@

$(VENV_457)/tools.stamp: tests/requirements-4.57.txt | check-python
	@echo "setting up $(VENV_457)"
	@$(call make_venv,$(VENV_457))
	@$(VENV_457)/bin/python -m pip install --quiet -r tests/requirements-4.57.txt
	@touch $@

# Lent packages: the environment sees those of PYTHON and adds only what is missing.
$(VENV_DEMO)/tools.stamp: tests/requirements.txt $(wildcard examples/requirements*.txt) \
    scripts/lend.py | check-python
	@echo "setting up $(VENV_DEMO) with the packages of $(PYTHON)"
	@$(call make_venv,$(VENV_DEMO))
	@$(PYTHON) scripts/lend.py $(VENV_DEMO)
	@grep -hE '^(meson|ninja)' tests/requirements.txt >$(VENV_DEMO)/requirements.txt
	@grep -hvE '^(#|torch|transformers)' examples/requirements.txt >>$(VENV_DEMO)/requirements.txt
	@$(VENV_DEMO)/bin/python -m pip install --quiet -r $(VENV_DEMO)/requirements.txt
	@$(VENV_DEMO)/bin/python -m pip install --quiet --no-deps -r examples/requirements-nodeps.txt
	@echo "$(PYTHON)" >$(VENV_DEMO)/lender
	@touch $@

# ---- Building ------------------------------------------------------------------------------------

$(BUILD)/build.ninja: $(VENV)/tools.stamp
	@rm -rf $(BUILD)
	@PATH="$(TOOLS_PATH)" meson setup $(BUILD)

build: $(BUILD)/build.ninja
	@PATH="$(TOOLS_PATH)" ninja -C $(BUILD)

# One wheel serves every environment; without build isolation it is built by the pinned tools.
define install_wheel
rm -rf $(1)/wheel && \
PATH="$(ROOT)/$(1)/bin:$(PATH)" $(1)/bin/python -m pip wheel --quiet --no-deps \
    --no-build-isolation --wheel-dir $(1)/wheel . && \
$(1)/bin/python -m pip install --quiet --no-deps --force-reinstall $(1)/wheel/*.whl
endef

$(VENV)/project.stamp: $(VENV)/tools.stamp $(SOURCES)
	@echo "building the wheel"
	@$(call install_wheel,$(VENV))
	@touch $@

$(VENV_457)/project.stamp: $(VENV_457)/tools.stamp $(VENV)/project.stamp
	@$(VENV_457)/bin/python -m pip install --quiet --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@touch $@

$(VENV_DEMO)/project.stamp: $(VENV_DEMO)/tools.stamp $(SOURCES)
	@echo "building the wheel"
	@$(call install_wheel,$(VENV_DEMO))
	@touch $@

# ---- Tests ---------------------------------------------------------------------------------------

# Each run leaves its exit status and its report; tally.py judges both. With TALLY=no that is left
# to scripts/check, which adds more to it.
TALLY ?= yes
test: build $(VENV)/project.stamp $(VENV_457)/project.stamp
	@mkdir -p $(RESULTS)
	@rm -f $(NAMES:%=$(RESULTS)/%.rc) $(NAMES:%=$(RESULTS)/%.xml) $(MESON_REPORT)
	@PATH="$(TOOLS_PATH)" meson test -C $(BUILD) --no-rebuild --print-errorlogs; \
	    echo $$? >$(RESULTS)/meson.rc; \
	    cp $(MESON_REPORT) $(RESULTS)/meson.xml
	@PATH="$(TOOLS_PATH)" KVC_BUILD_DIR=$(ROOT)/$(BUILD) \
	    KVC_OTHER_PYTHON=$(ROOT)/$(VENV_457)/bin/python $(VENV)/bin/python -m pytest -q \
	    --junitxml=$(RESULTS)/pytest.xml tests/api tests/python tests/adapter; \
	    echo $$? >$(RESULTS)/pytest.rc
	@PATH="$(ROOT)/$(VENV_457)/bin:$(PATH)" KVC_BUILD_DIR=$(ROOT)/$(BUILD) \
	    KVC_OTHER_PYTHON=$(ROOT)/$(VENV)/bin/python $(VENV_457)/bin/python -m pytest -q \
	    --junitxml=$(RESULTS)/adapter-4.57.xml tests/adapter; \
	    echo $$? >$(RESULTS)/adapter-4.57.rc
	@[ $(TALLY) = no ] || $(VENV)/bin/python scripts/tally.py $(RESULTS) $(NAMES)

tidy:
	@$(PYTHON) tests/tidy.py

format:
	clang-format -i include/*.h src/*.[ch] tools/kvc/*.[ch] python/kvcache/*.[ch] \
	    tests/unit/*.c tests/fuzz/*.c examples/*.c
	$(VENV)/bin/ruff format python tests scripts examples bench

# ---- Demo and benches ----------------------------------------------------------------------------

# An interpreter that was named and that has torch and transformers lends them.
ifneq ($(filter demo,$(MAKECMDGOALS)),)
ifneq ($(origin PYTHON),file)
LENT := $(shell $(PYTHON) -c 'import torch, transformers' >/dev/null 2>&1 && echo yes)
# The environment belongs to one interpreter.
$(shell [ "$$(cat $(VENV_DEMO)/lender 2>/dev/null)" = "$(PYTHON)" ] || rm -rf $(VENV_DEMO))
endif
endif
DEMO_VENV := $(if $(LENT),$(VENV_DEMO),$(VENV))

demo: $(DEMO_VENV)/project.stamp
	@$(DEMO_VENV)/bin/python examples/demo.py $(if $(MODEL),--model '$(MODEL)') $(DEMO_FLAGS)

$(VENV)/kinds.stamp: examples/requirements-kinds.txt $(VENV)/tools.stamp
	@echo "installing Gemma 3 270M"
	@$(VENV)/bin/python -m pip install --quiet -r examples/requirements-kinds.txt
	@touch $@

demo-kinds: $(VENV)/project.stamp $(VENV)/kinds.stamp
	@$(VENV)/bin/python examples/demo_kinds.py

bench: $(VENV)/project.stamp
	@$(VENV)/bin/python bench/compare.py

# ---- Cleaning ------------------------------------------------------------------------------------

clean:
	rm -rf $(BUILD) build-check dist

distclean: clean
	rm -rf $(VENV) $(VENV_457) $(VENV_DEMO)
