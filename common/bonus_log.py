"""What the logs say about an intrinsic reward, the same for every method."""

from collections import deque

import numpy as np
import torch


class BonusLog:
    """Mean, spread and maximum of a rollout's bonuses, and their sum over whole episodes (mean of the last 100)."""

    def __init__(self, num_envs):
        self.episode_return = torch.zeros(num_envs)
        self.recent_returns = deque(maxlen=100)

    def metrics(self, intrinsic_rewards, ends):
        """Both (T, N); ends[t]: step t was the last of its episode."""
        for bonus, ended in zip(intrinsic_rewards.cpu(), ends.bool().cpu()):
            self.episode_return += bonus
            self.recent_returns.extend(self.episode_return[ended].tolist())
            self.episode_return[ended] = 0
        return {
            "charts/episodic_intrinsic_return": np.mean(self.recent_returns) if self.recent_returns else np.nan,
            "intrinsic/reward_mean": intrinsic_rewards.mean().item(),
            "intrinsic/reward_std": intrinsic_rewards.std().item(),
            "intrinsic/reward_max": intrinsic_rewards.max().item(),
        }

    def state_dict(self):
        return {"recent_returns": list(self.recent_returns)}

    def load_state_dict(self, state):
        self.recent_returns.extend(state["recent_returns"])
