#!/usr/bin/env bash
# Train SmolLM2-135M-Instruct on word problems: 25 steps, about 10 minutes on a laptop. It needs no GPU.
# `python scripts/get_model.py smollm2` fetches the model first. Other flags of train.py may follow.
set -euo pipefail
cd "$(dirname "$0")/.."
exec deepspeed --num_gpus 1 train.py --preset smollm2 --algo bnpo "$@"
