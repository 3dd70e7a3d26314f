#!/usr/bin/env bash
# What clustering within a rollout is worth: other numbers of clusters (64 is the default), every episode by itself, and
# every step a cluster of its own; MyWayHome-Sparse, two seeds. Settings: launch.sh.
#
#   benchmark/ablation_episodic.sh
#   python benchmark/plot.py runs/ablation_episodic/* --against run --out episodic.png
set -euo pipefail

suite() {
  for seed in ${SEEDS:-1 2}; do
    flags="--seed $seed --target-return 0.9 --total-timesteps 500000"
    for clusters in 16 64 256; do
      echo "vizdoom-sparse__jci_num_clusters_${clusters}__$seed ppo_lstm_jci.py --num-clusters $clusters $flags"
    done
    echo "vizdoom-sparse__jci_cluster_scope_episode__$seed ppo_lstm_jci.py --cluster-scope episode $flags"
    echo "vizdoom-sparse__jci_no_episodic_clustering__$seed ppo_lstm_jci.py --no-episodic-clustering $flags"
  done
}

exec "$(dirname "$0")/launch.sh" ablation_episodic "$@" < <(suite)
