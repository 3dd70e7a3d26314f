#!/usr/bin/env bash
# Who finds the way home: every run of docs/jci.md#results. DRY=1 only prints the commands; JOBS=2 runs two side by side.
#
#   benchmark/my_way_home.sh
#   python benchmark/collect.py runs/* --out benchmark/results
#   python benchmark/table.py benchmark/results/vizdoom-*.csv
set -euo pipefail
cd "$(dirname "$0")/.."

commands() {
  for seed in 1 2 3 4 5; do
    for task in sparse very-sparse; do
      echo "ppo_lstm_jci.py --exp-name jci --task $task --seed $seed --total-timesteps 1000000"
    done
    echo "ppo_lstm_jci.py --exp-name jci_random --encoder random --seed $seed"
  done
  for seed in 1 2 3; do
    echo "ppo_lstm_cells.py --exp-name cells --seed $seed"
    echo "ppo_lstm.py --exp-name bare --seed $seed"
    echo "ppo_lstm_jci.py --exp-name jci_count_steps --count steps --seed $seed"
  done
}

commands | sed "s/^/${PYTHON:-python} /; s/\$/ --target-return 0.9/" |
  if [ "${DRY:-0}" = 1 ]; then cat; else OMP_NUM_THREADS=1 xargs -P "${JOBS:-1}" -I{} sh -c 'echo "{}"; {}'; fi
