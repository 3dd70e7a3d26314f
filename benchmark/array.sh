#!/usr/bin/env bash
# The job array of LAUNCHER=slurm: task N runs the N-th argument, which benchmark/launch.sh wrote. SBATCH_PARTITION,
# SBATCH_ACCOUNT, SBATCH_TIMELIMIT and so on in the environment of launch.sh win over these lines.
#SBATCH --cpus-per-task=1
#SBATCH --mem=2G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -uo pipefail
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
bash -c "${!SLURM_ARRAY_TASK_ID}" &
run=$!
requeue=0
trap 'kill -TERM "$run"' TERM            # preempted or cancelled: the run saves; Slurm knows whether it starts again
trap 'requeue=1; kill -TERM "$run"' USR1 # two minutes before the time limit: save and go on in a new job
while wait "$run"; code=$?; kill -0 "$run" 2>/dev/null; do :; done # a signal ends `wait`, not the run
wait "$run"
code=$?
echo "$(date +%FT%T) task $SLURM_ARRAY_TASK_ID on $(hostname): exit code $code"
# killed, for example because memory was short: the checkpoint is there, so try again a few times
[ "$code" = 137 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ] && requeue=1
[ "$code" != 0 ] && [ "$requeue" = 1 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
