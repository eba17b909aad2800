#!/usr/bin/env bash
# Train Qwen2.5-Math-7B on MATH, as in Table 1 of the paper. It needs four GPUs of 80 GB, or more.
# `python scripts/prepare_data.py` downloads MATH. What it takes: examples/paper-7b.sh --dry-run --gpus 4 --gpu H100
set -euo pipefail
cd "$(dirname "$0")/.."
exec deepspeed train.py --preset paper-7b --algo bnpo "$@"
