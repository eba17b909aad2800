# make demo    install, train the tiny model with BNPO on two ranks, evaluate it (4 to 9 minutes on 2 cores)
#              MODEL=smollm2 trains a real model of 135M parameters instead (10 to 25 minutes)
# make test    install, run the tests of every promise
# make test-all   install, run all other tests too: model families, a real model, the hub, a browser, launchers
# make check   install, check style and types, run the small tests, which start no program
# make lint    install, check style and the imports between packages
# make bench   install with TRL, run the benchmarks of docs/performance.md
# make conformance   install with TRL and verl, compare their advantages and losses and the formulas of the paper's
#              released code with ours (four minutes)
# make check-gpu-environment   install the packages for GPUs into .venv-gpu and test them; needs no GPU
#
# PyTorch's CPU build is much smaller than the default one. On a machine without a GPU, set TORCH_INDEX to the address
# of the CPU wheels on PyTorch's installation page: make demo TORCH_INDEX=https://...

# The newest supported Python that runs and can make an environment.
PYTHONS := python3.13 python3.12 python3.11
RUNS = for python in $(PYTHONS); do $$python -c 'import ensurepip' 2> /dev/null && echo $$python && break; done
PYTHON := $(or $(PYTHON),$(shell $(RUNS)),python3.11)
MODEL ?= tiny
TORCH_INDEX ?=
# The programs look for GPUs at the same paths.
GPU_DEVICES := $(shell cat src/bnpo/gpu_devices.txt)
REQUIREMENTS := $(if $(wildcard $(GPU_DEVICES)),requirements.txt,requirements-cpu.txt)
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
TESTS := not extra
# Three tests at a time on two cores: while one of them waits for programs, the others use its core.
PARALLEL := -n 3 --dist loadscope --no-loadscope-reorder

.PHONY: demo test test-all check lint bench conformance check-gpu-environment

demo: .venv/.ready
	.venv/bin/python scripts/demo.py --model $(MODEL)

test: .venv/.ready
	.venv/bin/python -m pytest $(PARALLEL) -m "$(TESTS)"

test-all: test .venv/trl/.ready .venv/verl/.ready .venv/tunix/.ready
	.venv/bin/python -m pytest $(PARALLEL) -m extra

check: lint
	.venv/bin/mypy
	.venv/bin/python -m pytest $(PARALLEL) -m "not sampler and not program and not extra"

lint: .venv/.ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

bench: .venv/.ready .venv/trl/.ready
	.venv/bin/python benchmarks/run.py

conformance: .venv/.ready .venv/trl/.ready .venv/verl/.ready
	PYTHONPATH=.venv/trl:.venv/verl .venv/bin/python benchmarks/conformance.py
	.venv/bin/python benchmarks/released.py

# check_pins.py downloads all wheels a second time. Tests marked `sampler` start vLLM, whose build for GPUs needs a GPU.
# tests/test_gpu_wheel.py runs here only: it describes GPUs to vLLM.
check-gpu-environment:
	$(PYTHON) dev/check_pins.py
	$(MAKE) VENV=.venv-gpu REQUIREMENTS=requirements.txt TORCH_INDEX= .venv-gpu/.ready
	.venv-gpu/bin/python -m pip check
	.venv-gpu/bin/python dev/check_gpu_imports.py
	CUDA_VISIBLE_DEVICES= .venv-gpu/bin/python -m pytest $(PARALLEL) -m "not sampler"

# torch is installed first and with its dependencies, because its build (CPU or CUDA) decides which ones it has.
$(VENV)/.ready: $(REQUIREMENTS) pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(PIP) install --quiet --no-deps -r $(REQUIREMENTS)
	touch $@

# TRL and verl are installed into folders of their own, so that the environment of bnpo does not change.
.venv/trl/.ready: .venv/.ready benchmarks/requirements-trl.txt
	rm -rf .venv/trl
	$(PIP) install --quiet --no-deps --target .venv/trl -r benchmarks/requirements-trl.txt
	touch $@

.venv/verl/.ready: .venv/.ready benchmarks/requirements-verl.txt
	rm -rf .venv/verl
	$(PIP) install --quiet --no-deps --target .venv/verl -r benchmarks/requirements-verl.txt
	touch $@

# tunix pins other versions of shared packages, so it has an environment of its own.
.venv/tunix/.ready: .venv/.ready benchmarks/requirements-tunix.txt
	rm -rf .venv/tunix
	$(PYTHON) -m venv .venv/tunix
	.venv/tunix/bin/pip install --quiet -r benchmarks/requirements-tunix.txt ./src/bnpo_estimators
	touch $@
