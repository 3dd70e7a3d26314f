#!/usr/bin/env bash
# What each departure from the paper is worth: the default with one of them taken back at a time, MyWayHome-Sparse, two
# seeds, 250 k steps. Settings: launch.sh.
#
#   benchmark/departures.sh
#   python benchmark/table.py runs/departures/* runs/my_way_home/vizdoom-sparse__jci__*
set -euo pipefail

suite() {
  for seed in ${SEEDS:-11 12}; do
    while read -r name flags; do
      echo "vizdoom-sparse__jci_${name}__$seed ppo_lstm_jci.py $flags --seed $seed" \
        "--target-return 0.9 --total-timesteps 250000"
    done <<END
step_counts --count steps --pay first-visit
every_step --pay every-step
random --encoder random
long_rollouts --num-steps 256 --num-clusters 250
in_step --no-stagger-episodes
slow_learner --learning-rate 2.5e-4 --clip-coef 0.1
gamma_0.99 --gamma 0.99
raw_bonus --no-norm-bonus --int-coef 0.1 --ext-coef 1
END
  done
}

exec "$(dirname "$0")/launch.sh" departures "$@" < <(suite)
