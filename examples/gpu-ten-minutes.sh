#!/usr/bin/env bash
# On a machine with a CUDA device: the comparison of chapter 5 at 16 times the parameters and 16 times the tokens of the
# recorded one, in bfloat16, as far as it comes in ten minutes. Every run that ends is recorded in results/; the same
# command goes on where it was stopped. `residlab bench cost --json results/norm-cost-gpu.json` fills the columns of
# chapter 6, in ten minutes more.
set -euo pipefail
cd "$(dirname "$0")/.."
python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "no CUDA device is to be seen")'
residlab fetch wikipedia
status=0
timeout --signal=INT "${SECONDS_AT_MOST:-570}" \
    residlab run bhyt-depth --profile gpu-short --stage tuning --stage main || status=$?
residlab run bhyt-depth --profile gpu-short --list
exit "$((status == 124 ? 0 : status))"
