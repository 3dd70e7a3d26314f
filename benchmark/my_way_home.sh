#!/usr/bin/env bash
# Who finds the way home: every method on MyWayHome-Sparse, three seeds, and on VerySparse, one. Settings: launch.sh.
#
#   benchmark/my_way_home.sh
#   python benchmark/table.py runs/my_way_home/*
#   python benchmark/plot.py runs/my_way_home/vizdoom-sparse__* --out curves.png
set -euo pipefail

runs() { # task, seed
  local place=vizdoom-$1 flags="--task $1 --seed $2 --target-return 0.9 --total-timesteps 500000"
  echo "${place}__jci__$2 ppo_lstm_jci.py $flags"
  echo "${place}__jci_count_steps__$2 ppo_lstm_jci.py --count steps $flags"
  for method in rnd recode e3b icm ride cells; do
    echo "${place}__${method}__$2 ppo_lstm_$method.py $flags"
  done
  echo "${place}__bare__$2 ppo_lstm.py $flags"
}

suite() {
  for seed in ${SEEDS:-1 2 3}; do runs sparse "$seed"; done
  for seed in ${VERY_SPARSE_SEEDS:-1}; do runs very-sparse "$seed"; done
}

exec "$(dirname "$0")/launch.sh" my_way_home "$@" < <(suite)
