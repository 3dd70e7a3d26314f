#!/usr/bin/env bash
# Just Cluster It and RND in a Habitat scene, with the paper's one environment and no reward but the bonus: every command
# is printed before it runs, DRY=1 only prints. docs/habitat.md tells how to get habitat-sim and scenes.
#
#   benchmark/habitat.sh                                        # three seeds of each in Replica's apartment_0
#   SCENE=house.glb STEPS=51200 SEEDS=1 benchmark/habitat.sh
#
# It goes on when a run fails, says which, and exits with 1 at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
SEEDS=${SEEDS:-1 2 3}
STEPS=${STEPS:-2000000}
SCRIPTS=${SCRIPTS:-ppo_lstm_jci ppo_lstm_rnd}
PYTHON=${PYTHON:-python}
failed=0
for seed in $SEEDS; do
  for script in $SCRIPTS; do
    command=("$PYTHON" "$script.py" --env habitat --seed "$seed" --total-timesteps "$STEPS" ${SCENE:+--scene "$SCENE"})
    echo "${command[*]}"
    if [ "${DRY:-0}" = 0 ]; then
      "${command[@]}" || { echo "failed: ${command[*]}" >&2; failed=1; }
    fi
  done
done
exit "$failed"
