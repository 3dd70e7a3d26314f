#!/usr/bin/env bash
# Just Cluster It with the values of the paper's tables and the authors' code, three seeds. Settings: launch.sh.
#
#   ONLY=very-sparse__jci_paper__2 benchmark/paper.sh
set -euo pipefail

suite() {
  for seed in ${SEEDS:-1 2 3}; do
    for task in sparse very-sparse; do
      echo "vizdoom-${task}__jci_paper__$seed ppo_lstm_jci.py --task $task --seed $seed --count steps --encoder random" \
        "--num-steps 256 --num-clusters 250 --total-timesteps 2000000 --learning-rate 1e-4 --minibatch-size 256" \
        "--clip-coef 0.1 --clip-vloss --ent-coef 0.005 --gamma 0.99 --ext-coef 1 --int-coef 0.1 --no-norm-bonus" \
        "--no-bootstrap-timeouts --no-stagger-episodes"
    done
  done
}

exec "$(dirname "$0")/launch.sh" paper "$@" < <(suite)
