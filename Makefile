# The commands of contributors. They need python3 (3.11 or newer) with venv, a C compiler and make.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
MINUTES ?= 10
# One more than the number of cores, because many tests wait for processes that they started.
WORKERS ?= $(shell expr $$(nproc) + 1)
# Tests start a thousand processes, so bytecode files are written even if the environment disables them.
export PYTHONDONTWRITEBYTECODE :=

# A test that takes ten minutes prints the stacks of its threads and fails.
UNLESS_IT_HANGS := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

KERNELS := $(wildcard src/bascule/kernels/*/*.pyx src/bascule/kernels/*/*.pxd src/bascule/kernels/*/*.h) $(wildcard tests/support/kernels/*.pyx)

.PHONY: help run test test-brokers test-spark coverage check bench soak chaos mutants sanitize docs proto build clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## run a broker with NATS, a sample stream and a Spark job that archives it (data in run/demo)
	$(VENV)/bin/bascule demo --directory run/demo

# The two halves run side by side, because tests of Spark often wait for Java and the others for processes that they started.
test: build ## run all tests except the long ones
	$(MAKE) --no-print-directory --jobs 2 test-brokers test-spark

test-brokers: build
	$(PY) -m pytest $(UNLESS_IT_HANGS) -n $(WORKERS) --dist worksteal -m "not soak" --ignore tests/spark

# Each worker for Spark tests starts its own Java process, so there are two workers. The tests of a file stay together, in the order
# of the files, which begins with the longest tests.
test-spark: build
	$(PY) -m pytest $(UNLESS_IT_HANGS) -n 2 --dist loadfile --no-loadscope-reorder -m "not soak" tests/spark

coverage: build ## run the same tests and measure line coverage (takes 50 % longer)
	$(PY) -m pytest -n $(WORKERS) -m "not soak" --ignore tests/spark --cov --cov-report=
	$(PY) -m pytest -m "not soak" tests/spark --cov --cov-append --cov-report=term

check: build ## check lint, formatting, types and the layout of the source tree
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q -p no:cacheprovider tests/unit/project/test_layout.py

bench: build ## run the benchmarks; prints a table and writes bench/out/latest.json
	$(PY) -m bench

soak: build ## run the long tests for about MINUTES minutes (make soak MINUTES=60)
	BASCULE_SOAK_SECONDS=$$(( $(MINUTES) * 60 )) $(PY) -m pytest -n $(WORKERS) -m soak --ignore tests/spark
	BASCULE_SOAK_SECONDS=$$(( $(MINUTES) * 60 )) $(PY) -m pytest -m soak tests/spark
	HYPOTHESIS_PROFILE=soak $(PY) -m pytest -q -n $(WORKERS) -m "not soak" tests/property tests/parity

chaos: build ## run a cluster under load while brokers, NATS and disks fail, for MINUTES minutes (make chaos MINUTES=60)
	$(PY) -m tests.chaos.cluster.cluster_chaos --minutes $(MINUTES)

mutants: build ## plant bugs, one at a time; each must be found by its test
	$(PY) -m tools.mutants

# The kernels in build/sanitize report memory errors and undefined behaviour, and end the process: a test, or a broker, fails. Every process
# of a test gets the sanitizers' libraries; libstdc++ has to come with them for extensions in C++. A freed block is kept for a short
# while only, because tests measure the memory of brokers.
SANITIZED := build/sanitize
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all
LIBRARIES = $(foreach name,libasan.so libubsan.so libstdc++.so.6,$(shell $(CC) -print-file-name=$(name)))
SANITIZED_TESTS ?= tests/parity tests/hostile/clients

sanitize: build ## build the kernels under AddressSanitizer and UBSan, and run the parity, fuzz and hostile-client tests
	mkdir -p $(SANITIZED)
	tar -c --exclude='*.so' --exclude=__pycache__ setup.py pyproject.toml proto src tests tools | tar -x -C $(SANITIZED)
	cd $(SANITIZED) && CC=$(CC) KERNEL_FLAGS='-O1 -g1 -fno-omit-frame-pointer $(SANITIZERS)' \
		$(abspath $(PY)) setup.py --quiet build_ext --inplace
	cd $(SANITIZED) && PYTHONPATH=src:. PYTHONMALLOC=malloc LD_PRELOAD='$(LIBRARIES)' \
		ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16 UBSAN_OPTIONS=print_stacktrace=1 \
		$(abspath $(PY)) -m pytest $(UNLESS_IT_HANGS) -p no:cacheprovider -n $(WORKERS) -m "not soak" $(SANITIZED_TESTS)

docs: build ## generate docs/reference/ and the dashboard from the code
	$(PY) -m tools.reference

# Other packages declare health and reflection too, in the default pool, where a name may occur once: ours get a pool each.
proto: build ## generate src/bascule/proto/ from proto/*.proto
	$(PY) -m grpc_tools.protoc -I proto --python_out=src/bascule/proto --pyi_out=src/bascule/proto proto/*.proto
	sed -i 's/_descriptor_pool.Default()/_descriptor_pool.DescriptorPool()/' $(patsubst %,src/bascule/proto/%_pb2.py,health reflection)

build: $(VENV)/.built ## create .venv and compile the kernels, if they changed

clean: ## remove all build results
	rm -rf $(VENV) build dist run bench/out .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf src/*.egg-info src/bascule/kernels/*/*.so tests/support/kernels/*.so
	find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The build tools are installed first and with pinned versions, so that the build needs no isolated environment.
$(VENV)/.tools: constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) setuptools Cython
	touch $@

$(VENV)/.installed: $(VENV)/.tools pyproject.toml
	$(PIP) --no-build-isolation --editable '.[dev]'
	touch $@

# Only changed kernels are compiled again.
$(VENV)/.built: $(VENV)/.installed setup.py $(KERNELS)
	$(PY) setup.py --quiet build_ext --inplace
	touch $@
