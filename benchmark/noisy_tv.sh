#!/usr/bin/env bash
# Half of every frame is noise: JCI and RECODE on MyWayHome-Sparse, three seeds. Settings: launch.sh.
#
#   benchmark/noisy_tv.sh
#   python benchmark/plot.py runs/noisy_tv/* runs/my_way_home/vizdoom-sparse__{jci,recode}__* --against run --out tv.png
set -euo pipefail

suite() {
  for seed in ${SEEDS:-1 2 3}; do
    for method in jci recode; do
      echo "vizdoom-sparse__${method}_noisy_tv__$seed ppo_lstm_$method.py --noisy-tv --seed $seed" \
        "--target-return 0.9 --total-timesteps 500000"
    done
  done
}

exec "$(dirname "$0")/launch.sh" noisy_tv "$@" < <(suite)
