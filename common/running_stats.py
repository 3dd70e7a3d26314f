"""Statistics of everything seen so far, from batches."""

import torch


class RunningMeanStd:
    """Mean and variance over the batches' first axis, as if all of them had come at once, in float64."""

    def __init__(self, shape=()):
        self.mean = torch.zeros(shape, dtype=torch.float64)
        self.var = torch.zeros(shape, dtype=torch.float64)  # the population's: divided by count, not by count - 1
        self.count = torch.zeros((), dtype=torch.float64)

    def update(self, batch):
        """batch (B, *shape), B >= 1, of any type; the statistics move to its device"""
        batch = batch.double()
        self.mean, self.var, self.count = (part.to(batch.device) for part in (self.mean, self.var, self.count))
        # Chan et al. (1979): the variance of two groups from their means and variances; share is 1 at the first batch
        self.count = self.count + len(batch)
        share = len(batch) / self.count
        delta = batch.mean(0) - self.mean
        self.mean = self.mean + share * delta
        self.var = (1 - share) * self.var + share * batch.var(0, correction=0) + share * (1 - share) * delta**2

    @property
    def std(self):
        return (self.var + 1e-8).sqrt()

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


class MovingMean:
    """The mean of the batches' means, in which older ones fade: momentum * old + (1 - momentum) * new."""

    def __init__(self, momentum):
        self.momentum = momentum
        self.mean = None

    def update(self, batch):
        new = batch.mean().item()
        self.mean = new if self.mean is None else self.momentum * self.mean + (1 - self.momentum) * new

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = None if state["mean"] is None else float(state["mean"])
