"""What the logs say about episodes: returns, lengths, successes, and what the intrinsic reward added."""

from collections import deque

import numpy as np
import torch


class EpisodeLog:
    """Fed with whole rollouts; an episode may go on over several of them. Means are over the last 100 episodes."""

    def __init__(self, num_envs):
        self.running = torch.zeros(3, num_envs, dtype=torch.float64)  # return, length, intrinsic return so far
        self.recent = deque(maxlen=100)  # the same three of finished episodes
        self.num_episodes, self.num_goals = 0, 0

    def add(self, rewards, intrinsic_rewards, ends):
        """All (T, N); ends[t]: step t was the last of its episode."""
        steps = torch.stack([rewards, torch.ones_like(rewards), intrinsic_rewards], 1).double().cpu()  # (T, 3, N)
        for step, ended in zip(steps, ends.bool().cpu()):
            self.running += step
            finished = self.running[:, ended].T.tolist()
            self.running[:, ended] = 0
            self.recent.extend(finished)
            self.num_episodes += len(finished)
            self.num_goals += sum(episode_return > 0 for episode_return, _, _ in finished)

    def has_reached(self, target_return):
        """Do the last 100 episodes return more than this on average?"""
        return len(self.recent) == 100 and np.mean([episode[0] for episode in self.recent]) > target_return

    def metrics(self):
        returns, lengths, intrinsic_returns = np.array(self.recent).reshape(-1, 3).T
        has_ended = len(self.recent) > 0
        return {
            "charts/episodic_return": returns.mean() if has_ended else np.nan,
            "charts/episodic_length": lengths.mean() if has_ended else np.nan,
            "charts/episodic_intrinsic_return": intrinsic_returns.mean() if has_ended else np.nan,
            "charts/success": (returns > 0).mean() if has_ended else np.nan,
            "charts/episodes": self.num_episodes,
            "charts/goals": self.num_goals,
        }

    def state_dict(self):
        """Without the running episodes: a resumed run starts fresh ones."""
        return {"recent": list(self.recent), "num_episodes": self.num_episodes, "num_goals": self.num_goals}

    def load_state_dict(self, state):
        self.recent.clear()
        for episode_return, length, intrinsic_return in state["recent"]:
            self.recent.append([float(episode_return), float(length), float(intrinsic_return)])
        self.num_episodes, self.num_goals = state["num_episodes"], state["num_goals"]
