"""Hard labels of a full-covariance Gaussian mixture, as scikit-learn's GaussianMixture gives them but much faster.

Component k owns few points compared with the D embedding dimensions, so its covariance is a multiple of the identity
plus a low-rank term, S = eps I + B^T B, where B (s, D) has the rows sqrt(r_i / n_k) (x_i - mu) of its s points. With
L L^T = eps I + B B^T (s, s) and W = L^-1 B (s, D), Woodbury's identity and the determinant lemma give exactly

    (x - mu)^T S^-1 (x - mu) = (|x - mu|^2 - |W (x - mu)|^2) / eps        log det S = (D - s) log eps + 2 sum log L_ii

so no D x D matrix is factorised. Random draws, constants and stopping rules are scikit-learn's; all is float64.
"""

import warnings

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import ThreadpoolController

EPSILON = 1e-6  # added to the diagonal of every covariance
EMPTY_SIZE = 10 * np.finfo(np.float64).eps  # added to the size of every component
THREADS = ThreadpoolController()  # looking for the libraries takes milliseconds: once, not at every call


def gmm_labels(embeddings, num_clusters, seed=1):
    """Labels (T,) of the rows of `embeddings` (T, D) under a mixture of min(num_clusters, T) full Gaussians."""
    data = np.asarray(embeddings).astype(np.float64)
    if data.ndim != 2 or data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"embeddings must be a non-empty (T, D) array of finite numbers, got shape {data.shape}")
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1, got {num_clusters}")
    num_clusters = min(num_clusters, len(data))
    with THREADS.limit(limits=1):
        centred = data - data.mean(axis=0)
        basis = leading_directions(centred)
        head = centred @ basis
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
            labels = KMeans(num_clusters, n_init=1, random_state=seed).fit(data).labels_
        return expectation_maximisation(centred, head, basis, np.eye(num_clusters)[:, labels])


def leading_directions(centred, count=32):
    """Orthonormal columns (D, q) that hold most of the variance: one power iteration from evenly spaced rows."""
    start = centred[np.linspace(0, len(centred) - 1, min(count, *centred.shape)).astype(int)]
    return np.linalg.qr(centred.T @ (centred @ start.T))[0]


def squared_norms(rows):
    return np.einsum("...d,...d->...", rows, rows)


def expectation_maximisation(data, head, basis, responsibilities):
    """Alternate M- and E-steps from the (M, T) responsibilities; returns the most likely component of every row.

    The rows of `data` (T, D) are centred, which changes no likelihood; head = data @ basis (T, q).
    """
    log_joint = np.empty_like(responsibilities)  # log(weight * density), but for a constant
    head = np.vstack([head.T, np.ones(len(data))])  # (q + 1, T)
    # Leaving out rows with a smaller share than this in a component changes its covariance by < T * 1e-10 * eps.
    negligible = 1e-10 * min(1.0, EPSILON / max(4 * squared_norms(data).max(), EPSILON))
    changed = np.arange(len(responsibilities))
    bound, converged = -np.inf, False
    for _ in range(100):
        update_log_joint(log_joint, data, head, basis, responsibilities, changed)
        if converged:
            break
        highest = log_joint.max(axis=0)
        updated = np.exp(log_joint - highest)
        total = updated.sum(axis=0)
        updated /= total
        updated[updated < negligible * (updated.sum(axis=1, keepdims=True) + EMPTY_SIZE)] = 0
        changed = np.flatnonzero((updated != responsibilities).any(axis=1))
        responsibilities = updated
        previous_bound, bound = bound, (highest + np.log(total)).mean()
        converged = abs(bound - previous_bound) < 1e-3
    else:
        update_log_joint(log_joint, data, head, basis, responsibilities, changed)
    return log_joint.argmax(axis=0)


def update_log_joint(log_joint, data, head, basis, responsibilities, components):
    """M-step and E-step of the given components: refill their rows of log_joint (M, T)."""
    log_joint[components] = -np.inf
    counts = np.count_nonzero(responsibilities[components], axis=1)
    groups = []
    for count in np.unique(counts):  # components with equally many rows are handled together: g components of s rows
        group = components[counts == count]
        rows = np.nonzero(responsibilities[group])[1].reshape(len(group), count)  # (g, s)
        weights = responsibilities[group[:, None], rows]
        sizes = weights.sum(axis=1) + EMPTY_SIZE
        weights = weights / sizes[:, None]
        means = np.einsum("gs,gsd->gd", weights, data[rows])
        differences = data[rows] - means[:, None]  # (g, s, D)
        factors = np.sqrt(weights)[:, :, None] * differences
        whiteners, log_dets = woodbury(factors)
        peaks = np.log(sizes / len(data)) - 0.5 * log_dets  # log(weight * density) at the mean
        log_joint[group[:, None], rows] = peaks[:, None] - 0.5 * mahalanobis(differences, whiteners)
        groups.append((group, means, factors, whiteners, peaks))
    # A responsibility below exp(-100) = 4e-44 is nothing, even as a share of an otherwise empty component (EMPTY_SIZE).
    # Such entries stay at minus infinity; the rest is found with a lower bound of the Mahalanobis distance and computed
    # exactly. The bound is the distance in the q leading directions alone: for every orthonormal Q (D, q),
    # d^T S^-1 d >= (Q^T d)^T (Q^T S Q)^-1 (Q^T d), as the marginal of a Gaussian discards information.
    floor = log_joint.max(axis=0) - 101  # 1 more than needed, far above all rounding errors
    head_norms = squared_norms(head[:-1].T)
    for group, means, factors, whiteners, peaks in groups:
        offsets = means @ basis  # (g, q)
        small, _ = woodbury(factors @ basis)  # (g, s, q)
        small = np.concatenate([small, -small @ offsets[:, :, None]], axis=2)  # times (x, 1) gives W (x - mu)
        projected = (small.reshape(-1, small.shape[2]) @ head).reshape(len(group), -1, len(data))
        lower = head_norms - 2 * offsets @ head[:-1] + squared_norms(offsets)[:, None]  # |x - mu|^2 (g, T)
        lower -= np.einsum("gst,gst->gt", projected, projected)
        possible = (peaks[:, None] - (0.5 / EPSILON) * lower > floor) & np.isneginf(log_joint[group])
        for i in np.flatnonzero(possible.any(axis=1)):
            rows = np.flatnonzero(possible[i])
            log_joint[group[i], rows] = peaks[i] - 0.5 * mahalanobis(data[rows] - means[i], whiteners[i])


def woodbury(factors):
    """W (g, s', D) and log det S (g,) of S = eps I + B^T B for the factors B (g, s, D)."""
    if factors.shape[1] > factors.shape[2]:
        factors = np.linalg.qr(factors, mode="r")  # the same B^T B from no more than D rows
    count, dimension = factors.shape[1:]
    lower = np.linalg.cholesky(factors @ factors.swapaxes(1, 2) + EPSILON * np.eye(count))
    log_dets = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1) + (dimension - count) * np.log(EPSILON)
    return np.linalg.inv(lower) @ factors, log_dets


def mahalanobis(differences, whiteners):
    """Squared Mahalanobis distances (..., n) of the differences from the mean (..., n, D)."""
    return (squared_norms(differences) - squared_norms(differences @ whiteners.swapaxes(-1, -2))) / EPSILON
