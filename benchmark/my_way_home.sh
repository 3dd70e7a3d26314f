#!/usr/bin/env bash
# Who finds the way home: Just Cluster It on MyWayHome-Sparse and VerySparse, five seeds each; every other method, three
# seeds of Sparse and one of VerySparse. The defaults were chosen on other seeds (docs/log.md). Settings: launch.sh.
#
#   benchmark/my_way_home.sh
#   python benchmark/table.py runs/my_way_home/*
#   python benchmark/plot.py runs/my_way_home/vizdoom-sparse__* --out curves.png
set -euo pipefail

runs() { # task, seed
  local place=vizdoom-$1 flags="--task $1 --seed $2 --target-return 0.9 --total-timesteps 500000"
  for method in cells rnd recode e3b icm ride; do
    echo "${place}__${method}__$2 ppo_lstm_$method.py $flags"
  done
  echo "${place}__bare__$2 ppo_lstm.py $flags"
  echo "${place}__jci_count_steps__$2 ppo_lstm_jci.py --count steps $flags"
}

suite() {
  for seed in 11 12 13 14 15; do
    for task in sparse very-sparse; do
      echo "vizdoom-${task}__jci__$seed ppo_lstm_jci.py --task $task --seed $seed --target-return 0.9" \
        "--total-timesteps 1000000"
    done
  done
  for seed in ${SEEDS:-11 12 13}; do runs sparse "$seed"; done
  runs very-sparse 11
}

exec "$(dirname "$0")/launch.sh" my_way_home "$@" < <(suite)
