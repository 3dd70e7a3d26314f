#!/usr/bin/env bash
# What each departure from the paper is worth: the default with one of them taken back at a time, MyWayHome-Sparse, two
# seeds each. DRY=1 only prints the commands; JOBS=2 runs two side by side. Tables as in my_way_home.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

commands() {
  for seed in 1 2; do
    echo "--exp-name jci_step_counts --count steps --pay first-visit --seed $seed"
    echo "--exp-name jci_every_step --pay every-step --seed $seed"
    echo "--exp-name jci_long_rollouts --num-steps 256 --num-clusters 250 --seed $seed"
    echo "--exp-name jci_in_step --no-stagger-episodes --seed $seed"
    echo "--exp-name jci_slow_learner --learning-rate 2.5e-4 --clip-coef 0.1 --seed $seed"
    echo "--exp-name jci_raw_bonus --no-norm-bonus --int-coef 0.1 --ext-coef 1 --seed $seed"
  done
}

commands | sed "s/^/${PYTHON:-python} ppo_lstm_jci.py /; s/\$/ --target-return 0.9 --total-timesteps 400000/" |
  if [ "${DRY:-0}" = 1 ]; then cat; else OMP_NUM_THREADS=1 xargs -P "${JOBS:-1}" -I{} sh -c 'echo "{}"; {}'; fi
