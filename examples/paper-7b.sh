#!/usr/bin/env bash
# Train Qwen2.5-Math-7B on MATH, as in Table 1 of the paper. It needs four GPUs of 80 GB, or more.
# `python scripts/prepare_data.py` downloads MATH. What it takes:
# python scripts/plan.py --gpu H100 --gpus 4 train.py --preset paper-7b
set -euo pipefail
cd "$(dirname "$0")/.."
exec python scripts/launch.py train.py --preset paper-7b --algo bnpo "$@"
