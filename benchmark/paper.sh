#!/usr/bin/env bash
# Just Cluster It with the values of the paper's tables and the authors' code; further flags are passed on.
#
#   benchmark/paper.sh --task very-sparse --seed 2
set -euo pipefail
cd "$(dirname "$0")/.."
"${PYTHON:-python}" ppo_lstm_jci.py --exp-name jci_paper --count steps --encoder random --num-steps 256 --num-clusters 250 \
  --total-timesteps 2000000 --learning-rate 1e-4 --minibatch-size 256 --clip-coef 0.1 --clip-vloss \
  --ext-coef 1 --int-coef 0.1 --no-norm-bonus --no-bootstrap-timeouts --no-stagger-episodes "$@"
