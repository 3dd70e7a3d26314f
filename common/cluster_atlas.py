"""What the rows of a cluster table look like, where they are and when they were born: for pictures, not for rewards."""

import torch
import torch.nn.functional as F

MOST_PERIODS = 64  # that a run's history is cut into, however long it is


class ClusterAtlas:
    """One row each, in the table's order."""

    def __init__(self):
        self.steps = torch.zeros(0, dtype=torch.int64)  # that fell into the row
        self.appearances = torch.zeros(0, dtype=torch.int64)  # clusters of a rollout that were matched with the row
        self.births = torch.zeros(0, dtype=torch.int64)  # the global step at which the row was opened
        self.birthplaces = torch.zeros(0, 2)  # where the first step of the row was
        self.images = torch.zeros(0, 3, 42, 42)  # mean image
        self.positions = torch.zeros(0, 2)  # mean position
        self.history = torch.zeros(0, MOST_PERIODS, dtype=torch.int32)  # steps in each period, 0 in those to come

    def add(self, rows, clusters, images, positions, global_step):
        """For each of T steps its row, its cluster's number, its (T, 3, 42, 42) image and its (T, 2) position."""
        num_rows = max(len(self.steps), int(rows.max()) + 1)
        num_new = num_rows - len(self.steps)
        first_steps = clusters.argsort(stable=True)[clusters.bincount().cumsum(0) - clusters.bincount()]
        matched_rows = rows[first_steps]  # of each cluster
        founders = [int((rows == row).nonzero()[0]) for row in range(num_rows - num_new, num_rows)]
        self.birthplaces = torch.cat([self.birthplaces, positions[founders]])
        self.births = F.pad(self.births, (0, num_new), value=global_step)
        self.appearances = F.pad(self.appearances, (0, num_new)) + matched_rows.bincount(minlength=num_rows)
        self.positions = F.pad(self.positions, (0, 0, 0, num_new))
        if num_new:
            self.images = torch.cat([self.images, torch.zeros(num_new, 3, 42, 42)])
        # only the rows that were seen: all images together are large
        seen, rows = rows.unique(return_inverse=True)
        new_steps = rows.bincount()
        self.steps = F.pad(self.steps, (0, num_new))
        self.steps[seen] += new_steps
        self.history = F.pad(self.history, (0, 0, 0, num_new))
        period = self.current_period()
        self.history[seen, period] += new_steps.int()
        weights = 1 / self.steps[seen]  # of a new step in the means
        kept = 1 - new_steps * weights  # share of the earlier steps in the means
        sums = torch.zeros(len(seen), 3, 42, 42)
        for some_rows, some_images in zip(rows.split(128), images.split(128)):  # few enough to stay in the cache
            sums.index_add_(0, some_rows, some_images.float())
        by_row = (slice(None), None, None, None)
        self.images[seen] = self.images[seen] * kept[by_row] + sums * weights[by_row]
        sums = torch.zeros(len(seen), 2).index_add_(0, rows, positions)
        self.positions[seen] = self.positions[seen] * kept[:, None] + sums * weights[:, None]

    def current_period(self):
        """Where new steps go; periods are about as long as the first one."""
        lengths = self.history.sum(0)
        period = max(0, int((lengths > 0).sum()) - 1)
        if lengths[period] < max(lengths[0], 4096):
            return period
        if period == MOST_PERIODS - 1:  # no room for another: two and two become one
            pairs = self.history.unflatten(1, (-1, 2)).sum(2, dtype=torch.int32)
            self.history = F.pad(pairs, (0, MOST_PERIODS // 2))
            return MOST_PERIODS // 2
        return period + 1

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update({name: column.cpu() for name, column in state.items()})
