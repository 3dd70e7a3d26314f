#!/usr/bin/env bash
# Runs a suite. Standard input has a line for each run, NAME SCRIPT FLAGS; arguments are the suite's name and flags for
# every run, which come last and so win:
#
#   echo "memory__jci__1 ppo_lstm_jci.py --env memory --seed 1" | benchmark/launch.sh try --num-envs 8
#
# A run lives in runs/SUITE/NAME, and what it says in log.txt there; flags for every run become part of SUITE. Called
# again, finished runs are skipped and interrupted ones go on. A run that fails does not stop the others. Settings:
#
#   DRY=1             print the commands, run nothing
#   JOBS=2            two runs side by side, each with OMP_NUM_THREADS=1 unless that is set
#   ONLY=REGEX        only the runs whose names match, as in ONLY='sparse__(jci|rnd)__'
#   PYTHON=python     the interpreter
#   LAUNCHER=slurm    submit a job array instead, see docs/cluster.md
#
# Exit code: 0 if all runs are finished (or submitted), 1 if some failed or were stopped, 130 after Ctrl-C, 143 after SIGTERM.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
[ $# -gt 0 ] || { echo "launch.sh needs the suite's name: benchmark/my_way_home.sh shows how it is called." >&2; exit 2; }
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
python=${PYTHON:-python} jobs=${JOBS:-1} suite=$1 flags=""
shift
[ $# = 0 ] || { printf -v flags ' %q' "$@"; suite+=_$(tr -c 'A-Za-z0-9.=\n-' _ <<<"$*"); }
folder=runs/$suite

names=() commands=() todo=() failed=0 stopped=0
while read -r name script_and_flags; do
  [[ $name =~ ${ONLY:-.} ]] || continue
  names+=("$name")
  commands+=("$script_and_flags$flags --run-dir $folder/$name")
done
total=${#names[@]}
[ "$total" -gt 0 ] || { echo "No run of $suite matches ONLY='${ONLY:-}'." >&2; exit 2; }
if [ "${DRY:-0}" = 1 ]; then
  printf "OMP_NUM_THREADS=$OMP_NUM_THREADS $python %s\n" "${commands[@]}"
  exit
fi
for word in setsid "${python%% *}"; do
  command -v "$word" >/dev/null || { echo "There is no $word here: PYTHON=... names the interpreter." >&2; exit 2; }
done

is_finished() { # args.json has the commands of a run, and whether the last one came to its end
  local about=$folder/${names[$1]}/args.json
  grep -q '"finished": true' "$about" 2>/dev/null && grep -qF "\"command\": \"${commands[$1]}\"" "$about"
}

say() { # status, number of the run, remark
  printf '[%*d/%d] %-8s %-40s %s\n' "${#total}" "$(($2 + 1))" "$total" "$1" "${names[$2]}" "$3"
}

progress() { # of a run under way: the newest line of its progress bar
  local line
  line=$(tail -c 500 "$folder/${names[$1]}/log.txt" 2>/dev/null | tr '\r' '\n' | grep -a '%|' | tail -n 1)
  sed -nE 's/^.* ?\b([0-9]+%)\|.*\[[0-9:]+<([^,]*), *(.*)\]$/\1, ETA \2, \3/p' <<<"$line"
}

for i in "${!names[@]}"; do
  if is_finished "$i"; then say finished "$i" "before"; else todo+=("$i"); fi
done

shell_commands=() # of the runs to do, by their number
for i in "${todo[@]}"; do
  mkdir -p "$folder/${names[i]}"
  shell_commands[i]="exec $python ${commands[i]} >>$folder/${names[i]}/log.txt 2>&1"
done

case ${LAUNCHER:-local} in
slurm)
  [ ${#todo[@]} -gt 0 ] || exit 0
  exec sbatch --job-name="$suite" --output="$folder/slurm-%A_%a.txt" --array="1-${#todo[@]}${JOBS:+%$JOBS}" \
    benchmark/array.sh "${shell_commands[@]}"
  ;;
local) ;;
*) echo "LAUNCHER=$LAUNCHER: there are local and slurm." >&2; exit 2 ;;
esac

pids=() started=() # of the runs under way, by their number
seconds_of_ended=0 num_ended=0 drawn=0 last_drawn=$SECONDS

stop() { # in sessions of their own, runs do not hear Ctrl-C themselves
  stopped=$1
  [ ${#pids[@]} = 0 ] || kill -TERM "${pids[@]}" 2>/dev/null
}
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 143' TERM

erase() { # the lines of the runs under way, on a terminal
  [ "$drawn" = 0 ] || printf '\e[%dA\e[J' "$drawn"
  drawn=0
}

draw() { # a line for each run under way: on a terminal always the newest, in a file every ten minutes
  if [ ! -t 1 ]; then
    [ $((SECONDS - last_drawn)) -ge 600 ] || return
    last_drawn=$SECONDS
  fi
  local i line
  erase
  for i in "${!pids[@]}"; do
    line=$(say running "$i" "$(progress "$i")")
    if [ -t 1 ]; then line=${line:0:$(tput cols)} && drawn=$((drawn + 1)); fi
    echo "$line"
  done
}

has_ended() { # number of the run, its exit code
  local spent=$((SECONDS - started[$1])) left=$((${#todo[@]} + ${#pids[@]})) remark
  seconds_of_ended=$((seconds_of_ended + spent)) num_ended=$((num_ended + 1))
  remark="$((spent / 60)) min $((spent % 60)) s"
  [ "$left" = 0 ] || remark+=", the other $left in about $((seconds_of_ended * left / num_ended / jobs / 60 + 1)) min"
  erase
  case $2 in
  0) say finished "$1" "$remark" ;;
  129 | 130 | 143) say stopped "$1" "$remark" && failed=$((failed + 1)) ;;
  *) say FAILED "$1" "exit code $2, see $folder/${names[$1]}/log.txt: $(tail -n 1 "$folder/${names[$1]}/log.txt")"
    failed=$((failed + 1)) ;;
  esac
}

while :; do
  while [ "$stopped" = 0 ] && [ ${#todo[@]} -gt 0 ] && [ ${#pids[@]} -lt "$jobs" ]; do
    i=${todo[0]} todo=("${todo[@]:1}")
    setsid bash -c "${shell_commands[i]}" </dev/null &
    pids[i]=$! started[i]=$SECONDS
  done
  [ ${#pids[@]} -gt 0 ] || break
  draw
  sleep 1
  for i in "${!pids[@]}"; do
    pid=${pids[i]}
    kill -0 "$pid" 2>/dev/null && continue
    wait "$pid"
    code=$?
    unset "pids[i]"
    has_ended "$i" "$code"
  done
done
echo "$folder: $((total - failed - ${#todo[@]})) of $total runs are finished."
[ "$stopped" = 0 ] || exit "$stopped"
[ "$failed" = 0 ]
