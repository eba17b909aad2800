# An image for CPUs or, with another file of requirements, for NVIDIA GPUs. In the root of the repository:
#
#   docker build -t bnpo .
#   docker run --rm -it --shm-size 2g -v "$PWD/runs:/bnpo/runs" bnpo make demo
#
#   docker build -t bnpo-gpu --build-arg REQUIREMENTS=requirements.txt .
#   docker run --rm -it --gpus all --ipc host -v "$PWD/runs:/bnpo/runs" bnpo-gpu python scripts/gpu_check.py
#
# The image for CPUs is smaller with --build-arg TORCH_INDEX=ADDRESS, that of the CPU wheels on PyTorch's installation
# page. The image for GPUs takes CUDA from PyPI's wheels: the host only needs the driver and NVIDIA's container toolkit.
FROM python:3.11-slim-bookworm

# vLLM, Triton and DeepSpeed compile small functions. The newest compiler of the distribution will do.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /bnpo
COPY . .
ARG REQUIREMENTS=requirements-cpu.txt
ARG TORCH_INDEX=
RUN PIP_NO_CACHE_DIR=1 make .venv/.ready PYTHON=python3.11 REQUIREMENTS="$REQUIREMENTS" TORCH_INDEX="$TORCH_INDEX"
ENV PATH=/bnpo/.venv/bin:$PATH
CMD ["bash"]
