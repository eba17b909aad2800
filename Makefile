# make demo    install, train the tiny model with BNPO on two ranks, evaluate before and after: minutes
# make test    install, run all tests: a quarter of an hour on 2 cores
# make check   install, check style and types, run the tests that start no program and measure no seconds: minutes
# make lint    install, check style and which rooms of the package import which
# make bench   install, TRL too, and print the rows of docs/performance.md (about an hour on 2 cores)
# make check-gpu-environment   install what GPUs get into .venv-gpu, on any machine, and test it without a GPU
#
# Without a GPU, PyTorch's CPU build is much smaller than the default one: set TORCH_INDEX to the address of the
# CPU wheels that PyTorch's installation page gives, e.g. make demo TORCH_INDEX=https://...

PYTHON ?= python3.11
TORCH_INDEX ?=
REQUIREMENTS := $(if $(shell command -v nvidia-smi),requirements.txt,requirements-cpu.txt)
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
# Three tests at a time on two cores: while one starts programs or waits, the others use its core.
PARALLEL := -n 3 --dist loadscope --no-loadscope-reorder

.PHONY: demo test check lint bench check-gpu-environment

demo: .venv/.ready
	.venv/bin/python scripts/demo.py

test: .venv/.ready
	.venv/bin/python -m pytest $(PARALLEL) -m "not deadline"
	.venv/bin/python -m pytest -m deadline

check: lint
	.venv/bin/mypy
	.venv/bin/python -m pytest $(PARALLEL) -m "not sampler and not program and not deadline"

lint: .venv/.ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

bench: .venv/.ready .venv/trl/.ready
	.venv/bin/python benchmarks/run.py

# Downloads the wheels once more than the installation does. Other tests need vLLM, whose build for GPUs needs a GPU.
check-gpu-environment:
	$(PYTHON) dev/check_pins.py
	$(MAKE) VENV=.venv-gpu REQUIREMENTS=requirements.txt TORCH_INDEX= .venv-gpu/.ready
	.venv-gpu/bin/python -m pip check
	.venv-gpu/bin/python dev/check_gpu_imports.py
	CUDA_VISIBLE_DEVICES= .venv-gpu/bin/python -m pytest -m "not sampler"

# torch comes first and with its dependencies, since the build that suits the machine decides which those are.
$(VENV)/.ready: $(REQUIREMENTS) pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(PIP) install --quiet --no-deps -r $(REQUIREMENTS)
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	touch $@

# TRL, the rival of `make bench`, in a folder of its own: the environment of the product stays as it is.
.venv/trl/.ready: .venv/.ready benchmarks/requirements-trl.txt
	rm -rf .venv/trl
	$(PIP) install --quiet --no-deps --target .venv/trl -r benchmarks/requirements-trl.txt
	touch $@
