"""How many numbers each method adds to the agent, trained and frozen.

Usage: python benchmark/parameters.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ppo_lstm
import ppo_lstm_e3b
import ppo_lstm_icm
import ppo_lstm_ride
import ppo_lstm_rnd
from common.encoders import RandomEncoder, TextureEncoder

NUM_ACTIONS = 4  # of MyWayHome
MODULES = {
    "ppo_lstm.py": ppo_lstm.Agent(NUM_ACTIONS),
    "ppo_lstm_jci.py": TextureEncoder(),
    "ppo_lstm_rnd.py": ppo_lstm_rnd.RND(),
    "ppo_lstm_recode.py": RandomEncoder(),
    "ppo_lstm_e3b.py": ppo_lstm_e3b.Dynamics(NUM_ACTIONS),
    "ppo_lstm_icm.py": ppo_lstm_icm.Dynamics(NUM_ACTIONS),
    "ppo_lstm_ride.py": ppo_lstm_ride.Dynamics(NUM_ACTIONS),
}


def main():
    print(f"{'':20}{'trained':>10}{'frozen':>10}")
    for script, module in MODULES.items():
        trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
        frozen = sum(p.numel() for p in module.parameters()) - trained
        print(f"{script:20}{trained:10,}{frozen:10,}")


if __name__ == "__main__":
    main()
