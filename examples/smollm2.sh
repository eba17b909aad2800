#!/usr/bin/env bash
# Train SmolLM2-135M-Instruct on word problems: 25 steps, 12 to 25 minutes on 2 CPU cores. It needs no GPU.
# `python scripts/get_model.py smollm2` fetches the model first. Other flags of train.py may follow.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python scripts/launch.py train.py --preset smollm2 --algo bnpo "$@"
