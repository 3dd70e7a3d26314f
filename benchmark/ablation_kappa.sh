#!/usr/bin/env bash
# How much kappa matters: MyWayHome-Sparse, two seeds, texture features and the paper's random ones. Settings: launch.sh.
#
#   benchmark/ablation_kappa.sh
#   python benchmark/plot.py runs/ablation_kappa/* --against kappa --out kappa.png
set -euo pipefail

suite() {
  for seed in ${SEEDS:-1 2}; do
    flags="--seed $seed --target-return 0.9 --total-timesteps 500000"
    for kappa in 0.95 0.97 0.98 0.987 0.99 0.995; do
      echo "vizdoom-sparse__jci_kappa_${kappa}__$seed ppo_lstm_jci.py --kappa $kappa $flags"
    done
    for kappa in 0.5 0.65 0.8 0.9 0.95; do
      echo "vizdoom-sparse__jci_random_kappa_${kappa}__$seed ppo_lstm_jci.py --encoder random --kappa $kappa $flags"
    done
  done
}

exec "$(dirname "$0")/launch.sh" ablation_kappa "$@" < <(suite)
