"""gmm_labels against scikit-learn's GaussianMixture, on embeddings of real ViZDoom frames and on awkward inputs."""

import os
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import vizdoom
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from torch import nn

from common.clustering import gmm_labels


def scikit_learn_labels(data, num_clusters, seed=1):
    mixture = GaussianMixture(num_clusters, covariance_type="full", reg_covar=1e-6, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(data).predict(data)


def assert_same_partition(data, num_clusters, seed=1):
    data = np.asarray(data, dtype=np.float64)
    labels = gmm_labels(data, num_clusters, seed)
    assert labels.shape == (len(data),) and labels.dtype == np.int64
    assert adjusted_rand_score(scikit_learn_labels(data, min(num_clusters, len(data)), seed), labels) == 1.0


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """2100 consecutive 42x42 frames of MyWayHome under random actions, float (2100, 3, 42, 42) in [0, 1]."""
    start = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("vizdoom"))  # the engine leaves files in its working directory
    game = vizdoom.DoomGame()
    try:
        game.load_config(os.path.join(vizdoom.scenarios_path, "my_way_home.cfg"))
        game.set_window_visible(False)
        game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        game.set_seed(7)
        game.init()
        actions = np.eye(game.get_available_buttons_size(), dtype=int).tolist()
        random = np.random.RandomState(7)
        screens = []
        while len(screens) < 2100:
            if game.is_episode_finished():
                game.new_episode()
            screens.append(game.get_state().screen_buffer.copy())
            game.make_action(actions[random.randint(len(actions))], 4)
    finally:
        game.close()
        os.chdir(start)
    batch = torch.from_numpy(np.stack(screens)).permute(0, 3, 1, 2).float()
    return F.interpolate(batch, (42, 42), mode="bilinear", antialias=True) / 255


@pytest.fixture(scope="module", params=["orthogonal", "default"])
def embeddings(request, frames):
    """Features (2100, 384) of a frozen random encoder."""
    torch.manual_seed(0)
    layers = []
    for channels in (3, 32, 32, 32):
        layers += [nn.Conv2d(channels, 32, 3, stride=2, padding=1), nn.ELU()]
    encoder = nn.Sequential(*layers, nn.Flatten(), nn.Linear(288, 384))
    if request.param == "orthogonal":
        for layer in encoder:
            if hasattr(layer, "weight"):
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
    with torch.no_grad():
        return encoder(frames).numpy()


@pytest.mark.parametrize("num_rows, num_clusters", [(525, 250), (500, 30), (2048, 64)])
def test_partition_of_doom_embeddings(embeddings, num_rows, num_clusters):
    assert_same_partition(embeddings[:num_rows], num_clusters)


@pytest.mark.parametrize("num_rows, num_clusters, seed", [(300, 20, 0), (300, 20, 2), (40, 250, 1), (60, 1, 1)])
def test_other_seeds_and_sizes(embeddings, num_rows, num_clusters, seed):
    assert_same_partition(embeddings[:num_rows], num_clusters, seed)


def test_fewer_distinct_rows_than_clusters(embeddings):
    rows = np.random.RandomState(0).randint(10, size=100)
    labels = gmm_labels(embeddings[:400:40][rows], 30)
    assert_same_partition(embeddings[:400:40][rows], 30)
    assert adjusted_rand_score(rows, labels) == 1.0


def test_many_duplicates(embeddings):
    assert_same_partition(embeddings[np.random.RandomState(0).randint(150, size=400)], 100)


def test_more_rows_per_cluster_than_dimensions():
    random = np.random.RandomState(0)
    assert_same_partition(random.randn(400, 5) + 4 * random.randint(3, size=(400, 1)), 4)


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_constant_rows_share_one_label(value):
    data = np.full((20, 384), value)
    assert_same_partition(data, 5)
    assert len(np.unique(gmm_labels(data, 5))) == 1


def test_single_row():
    assert gmm_labels(np.ones((1, 384)), 250).tolist() == [0]


def test_tensors_and_float32_give_the_labels_of_float64(embeddings):
    expected = gmm_labels(embeddings[:100].astype(np.float64), 20)
    assert (gmm_labels(embeddings[:100], 20) == expected).all()
    assert (gmm_labels(torch.from_numpy(embeddings[:100]), 20) == expected).all()


def test_no_warnings_and_input_untouched():
    data = np.repeat(np.random.RandomState(0).randn(3, 8), 4, axis=0)
    copy = data.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gmm_labels(data, 6)
    assert (data == copy).all()


@pytest.mark.parametrize("bad", [np.ones(5), np.ones((0, 3)), np.ones((3, 0)), np.array([[1.0], [np.nan]])])
def test_bad_input_is_refused(bad):
    with pytest.raises(ValueError):
        gmm_labels(bad, 2)
    with pytest.raises(ValueError):
        gmm_labels(np.ones((3, 2)), 0)
