"""The listing in the appendix of the paper, transcribed literally: what ClusterTable.visit has to equal."""

import numpy as np
from sklearn.metrics.pairwise import cosine_similarity


def listing(table, embeddings, labels, kappa):
    """Cluster by cluster and step by step; `table` is a list of [centre, count] that grows. Returns the bonuses."""
    rewards = np.zeros(len(labels))
    ordered_labels = []
    for label in labels:  # clusters in order of their first appearance
        if label not in ordered_labels:
            ordered_labels.append(label)
    for label in ordered_labels:
        members = np.where(labels == label)[0]
        centre = np.mean(embeddings[members], axis=0)
        similarities = cosine_similarity([centre], np.vstack([row[0] for row in table]))[0]
        index = np.argmax(similarities)
        is_new = similarities[index] < kappa
        count = 0 if is_new else table[index][1]
        for step in members:
            count += 1
            rewards[step] = 1 / np.sqrt(count)
        if is_new:
            table.append([centre, len(members)])
        else:
            table[index][1] += len(members)
    return rewards
