#!/usr/bin/env bash
# Train the 0.8M-parameter model of this repository on generated arithmetic: 100 steps, minutes on a laptop.
# It needs no GPU and no download. Other flags of train.py follow: examples/tiny.sh --algo grpo --seed 1
set -euo pipefail
cd "$(dirname "$0")/.."
exec python scripts/launch.py train.py --preset tiny --algo bnpo "$@"
