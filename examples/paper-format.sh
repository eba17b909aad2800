#!/usr/bin/env bash
# Train Qwen2.5-1.5B-Instruct on MATH with rewards for accuracy and format, as in Table 2 of the paper (AD-BNPO).
# `python scripts/prepare_data.py` downloads MATH. --no-decompose trains on the mean of both rewards: plain BNPO.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python scripts/launch.py train.py --preset paper-format --algo bnpo "$@"
