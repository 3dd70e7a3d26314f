#!/usr/bin/env bash
# How much of a Habitat scene is visited: every method with the paper's one environment and no reward but the bonus,
# three seeds. docs/habitat.md tells how to get habitat-sim and scenes. Settings: launch.sh.
#
#   benchmark/habitat.sh                                                       # in Replica's apartment_0
#   ONLY='(jci|rnd)__1' benchmark/habitat.sh --scene house.glb --total-timesteps 51200
set -euo pipefail

suite() {
  for seed in ${SEEDS:-1 2 3}; do
    for method in jci rnd recode e3b icm ride; do
      echo "habitat__${method}__$seed ppo_lstm_$method.py --env habitat --seed $seed --total-timesteps 2000000"
    done
  done
}

exec "$(dirname "$0")/launch.sh" habitat "$@" < <(suite)
