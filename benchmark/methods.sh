#!/usr/bin/env bash
# The curves of all methods' first 303,104 steps, benchmark/results/methods.png, from the data in benchmark/results/.
set -euo pipefail
cd "$(dirname "$0")/.."
"${PYTHON:-python}" benchmark/plot.py --max-steps 303104 --out benchmark/results/methods.png \
  "PPO-LSTM=benchmark/results/bare.csv" "Just Cluster It=benchmark/results/jci.csv" "RND=benchmark/results/rnd.csv" \
  "RECODE=benchmark/results/recode.csv" "E3B=benchmark/results/e3b.csv" "Curiosity=benchmark/results/icm.csv" \
  "RIDE=benchmark/results/ride.csv"
