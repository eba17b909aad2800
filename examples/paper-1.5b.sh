#!/usr/bin/env bash
# Train Qwen2.5-Math-1.5B on MATH, as in Table 1 of the paper. It needs one GPU of 48 GB, or of 16 GB
# with --offload-optimizer, or several.
# `python scripts/prepare_data.py` downloads MATH. What it takes:
# python scripts/plan.py --gpu A100-80GB --gpus 4 train.py --preset paper-1.5b
set -euo pipefail
cd "$(dirname "$0")/.."
exec python scripts/launch.py train.py --preset paper-1.5b --algo bnpo "$@"
