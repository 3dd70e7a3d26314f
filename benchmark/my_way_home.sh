#!/usr/bin/env bash
# All methods and the bare learner on MyWayHome: every command is printed before it runs, DRY=1 only prints.
#
#   benchmark/my_way_home.sh                                    # three seeds of each on Sparse, one after the other
#   TASK=very-sparse SEEDS="1 2 3 4 5" benchmark/my_way_home.sh
#   STEPS=303104 SEEDS=1 SCRIPTS="ppo_lstm_rnd ppo_lstm_e3b" benchmark/my_way_home.sh
#
# It goes on when a run fails, says which, and exits with 1 at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
TASK=${TASK:-sparse}
SEEDS=${SEEDS:-1 2 3}
STEPS=${STEPS:-2000000}
SCRIPTS=${SCRIPTS:-ppo_lstm ppo_lstm_jci ppo_lstm_rnd ppo_lstm_recode ppo_lstm_e3b ppo_lstm_icm ppo_lstm_ride}
PYTHON=${PYTHON:-python}
failed=0
for seed in $SEEDS; do
  for script in $SCRIPTS; do
    command=("$PYTHON" "$script.py" --task "$TASK" --seed "$seed" --total-timesteps "$STEPS" --save-model)
    echo "${command[*]}"
    if [ "${DRY:-0}" = 0 ]; then
      "${command[@]}" || { echo "failed: ${command[*]}" >&2; failed=1; }
    fi
  done
done
exit "$failed"
