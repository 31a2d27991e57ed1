# Entry points for people. CMake and Ninja do the work.

JOBS ?= $(shell nproc)
# make build CUDA=1: with the CUDA backend, in a build folder of its own.
BUILD := build/$(if $(CUDA),cuda,release)
ASAN := build/asan
VENV := build/venv
FUZZ := build/fuzz
FUZZ_SECONDS ?= 60
TIDY := build/tidy
HOST ?= 127.0.0.1
PORT ?= 8000
CLANG_FORMAT := $(or $(shell command -v clang-format-14),clang-format)
CXX_FILES := '*.cc' '*.h' '*.cu' '*.cuh'
SUITES := $(sort $(dir $(wildcard tests/*/test_*.py)))

.PHONY: help deps build run test check test-asan format check-format check-layers unit suites $(SUITES) check-kernels fuzz clean

help:
	@echo "make run        install what is needed, build, serve models/pocket on http://$(HOST):$(PORT)"
	@echo "make deps       install the packages that building and testing need"
	@echo "make build      build/release/bin/assay; with CUDA=1 build/cuda/bin/assay, which needs nvcc"
	@echo "make check      formatting, layers, unit tests: under two minutes once built"
	@echo "make test       everything that continuous integration runs"
	@echo "make test-asan  unit tests with AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make fuzz       fuzz every parser of files and requests for FUZZ_SECONDS ($(FUZZ_SECONDS)) each"
	@echo "make tidy       clang-tidy over src and apps without tests, as a build for CPUs compiles them"
	@echo "make format     rewrite the sources in the project's format"

deps:
	@tools/install_deps.sh

$(BUILD)/build.ninja:
	cmake --preset release -B $(BUILD) $(if $(CUDA),-DASSAY_CUDA=ON)

build: $(BUILD)/build.ninja
	cmake --build $(BUILD) --target assay -j $(JOBS)

run: deps
	@$(MAKE) --no-print-directory build
	@echo "Serving models/pocket. Stop with Ctrl-C. The address follows when the model is loaded."
	@exec $(BUILD)/bin/assay serve models/pocket --host $(HOST) --port $(PORT)

check: check-format check-layers unit

check-format:
	@git ls-files -z -- $(CXX_FILES) | xargs -0 -r $(CLANG_FORMAT) --dry-run --Werror
	@echo "format: ok"

check-layers:
	@python3 tools/check_layers.py --self-test
	@python3 tools/check_layers.py

# Tests that need more than their own folder carry a label; those without one are unit tests.
unit: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure -LE '.+' -j $(JOBS)

test: deps
	@$(MAKE) --no-print-directory check-format check-layers $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)
	@$(MAKE) --no-print-directory -O -j $(JOBS) suites $(if $(CUOBJDUMP),check-kernels)

# The suites in Python, each against servers of its own that the built program starts.
suites: $(SUITES)
$(SUITES): $(VENV)/installed
	ASSAY_BIN=$(abspath $(BUILD)/bin/assay) $(VENV)/bin/python -m pytest -q -p no:cacheprovider $@

# CUOBJDUMP comes from tools/cuda_toolkit.sh.
check-kernels:
	python3 tools/check_kernels.py $(BUILD) --cuobjdump $(CUOBJDUMP)

$(VENV)/installed: tests/api/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/api/requirements.txt
	@touch $@

test-asan:
	cmake --preset asan
	cmake --build $(ASAN) -j $(JOBS)
	ctest --test-dir $(ASAN) --output-on-failure -LE '.+' -j $(JOBS)

# What a target finds is kept in build/fuzz/corpus, and a crash in build/fuzz/crashes.
fuzz:
	@tools/install_deps.sh fuzz
	cmake --preset fuzz
	cmake --build $(FUZZ) --target fuzz_targets -j $(JOBS)
	@set -e; for source in tests/fuzz/fuzz_*.cc; do \
	  target=$$(basename $$source .cc); name=$${target#fuzz_}; \
	  echo "$$target, $(FUZZ_SECONDS) s"; \
	  mkdir -p $(FUZZ)/corpus/$$name $(FUZZ)/crashes; \
	  $(FUZZ)/bin/$$target $(FUZZ)/corpus/$$name tests/fuzz/seeds/$$name -max_total_time=$(FUZZ_SECONDS) -timeout=10 \
	    -rss_limit_mb=2048 -max_len=16384 -artifact_prefix=$(FUZZ)/crashes/$$name- -verbosity=0 -print_final_stats=1; \
	done

# Without precompiled headers: clang has none, and so a source that leans on them is found.
tidy:
	@tools/install_deps.sh tidy
	cmake --preset release -B $(TIDY) -DASSAY_TESTS=OFF -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
	  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
	run-clang-tidy-14 -p $(TIDY) -quiet -j $(JOBS) '/(src|apps)/'

format:
	git ls-files -z -- $(CXX_FILES) | xargs -0 -r $(CLANG_FORMAT) -i

clean:
	rm -rf build
