import shutil

import numpy as np
import pytest
import torch
import transformers
from conftest import read_progress
from safetensors.torch import load_file, save_file

from common.encoders import DinoEncoder, RandomEncoder, TextureEncoder


def test_random_encoder_is_four_elu_convolutions_and_a_linear_layer():
    encoder = RandomEncoder()
    frames = torch.randint(256, (300, 3, 42, 42), dtype=torch.uint8)  # more than one chunk
    x = frames.float() / 255
    for layer in encoder.network:
        if isinstance(layer, torch.nn.Conv2d):
            x = torch.nn.functional.elu(torch.nn.functional.conv2d(x, layer.weight, layer.bias, stride=2, padding=1))
    x = x.flatten(1) @ encoder.network[-1].weight.T + encoder.network[-1].bias
    torch.testing.assert_close(encoder(frames), x, rtol=0, atol=1e-4)
    assert encoder(frames).shape == (300, encoder.embedding_size)


def test_texture_is_mean_and_deviation_of_every_filter_in_both_halves():
    encoder = TextureEncoder()
    frames = torch.randint(256, (200, 3, 42, 42), dtype=torch.uint8)
    filtered = np.zeros((200, 32, 21, 21))
    pixels, weights = np.pad(frames / 255.0, ((0, 0), (0, 0), (1, 1), (1, 1))), encoder.convolution.weight.numpy()
    for y in range(21):
        for x in range(21):
            patch = pixels[:, :, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3]
            filtered[:, :, y, x] = np.einsum("bcij,fcij->bf", patch, weights)
    filtered = np.where(filtered > 0, filtered, np.exp(np.minimum(filtered, 0)) - 1)
    halves = filtered[:, :, :11].reshape(200, 32, -1), filtered[:, :, 11:].reshape(200, 32, -1)
    expected = [statistic for half in halves for statistic in (half.mean(2), half.std(2))]
    np.testing.assert_allclose(encoder(frames), np.concatenate(expected, axis=1), atol=1e-5)
    assert encoder(frames).shape == (200, encoder.embedding_size)


@pytest.mark.parametrize("encoder_class", [RandomEncoder, TextureEncoder])
def test_frozen_and_orthogonal(encoder_class):
    encoder = encoder_class()
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    layers = [layer for layer in encoder.modules() if hasattr(layer, "weight")]
    assert layers
    for layer in layers:
        weight = layer.weight.flatten(1).double()
        gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(gram, 2 * torch.eye(len(gram), dtype=torch.float64), rtol=0, atol=1e-5)
        assert layer.bias is None or not layer.bias.any()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Small random models, saved as a user would have them on disk."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    dino = {"num_hidden_layers": 1, "num_attention_heads": 4, "mlp_ratio": 1, "patch_size": 14, "image_size": 518}
    models = {
        "dino": transformers.Dinov2Model(transformers.Dinov2Config(hidden_size=384, **dino)),
        "dino-large": transformers.Dinov2Model(transformers.Dinov2Config(hidden_size=1024, **dino)),
        "vit": transformers.ViTModel(transformers.ViTConfig(hidden_size=32, image_size=64, **small)),
        "resnet": transformers.ResNetModel(
            transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
        ),
        "bert": transformers.BertModel(transformers.BertConfig(hidden_size=32, vocab_size=50, **small)),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
    for name in ("corrupt", "no-weights", "incomplete"):
        shutil.copytree(folder / "dino", folder / name)
    with open(folder / "corrupt" / "model.safetensors", "r+b") as file:
        file.truncate(500)
    (folder / "no-weights" / "model.safetensors").unlink()
    weights = load_file(folder / "incomplete" / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, folder / "incomplete" / "model.safetensors", metadata={"format": "pt"})
    (folder / "empty").mkdir()
    return folder


def random_frames(number, height, width):
    return np.random.default_rng(0).integers(256, size=(number, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("authors_preprocessing", [False, True])
def test_dino_embeddings_equal_a_direct_call(models, authors_preprocessing):
    encoder = DinoEncoder(models / "dino", torch.device("cpu"), authors_preprocessing)
    images = encoder.prepare(random_frames(40, 120, 160), None)  # more than one chunk
    assert images.shape == (40, 3, 98, 98)
    pixels = images.numpy() / 255
    if not authors_preprocessing:
        for channel, (mean, std) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
            pixels[:, channel] = (pixels[:, channel] - mean) / std
    model = transformers.Dinov2Model.from_pretrained(models / "dino").eval()
    with torch.no_grad():
        expected = model(pixel_values=torch.from_numpy(pixels).float()).last_hidden_state[:, 0]
    torch.testing.assert_close(encoder(images), expected, rtol=0, atol=1e-4)
    assert encoder.embedding_size == 384


def test_dino_sees_the_whole_frame_and_the_authors_variant_its_middle(models):
    frame = np.zeros((1, 120, 160, 3), np.uint8)
    frame[:, :, :16], frame[:, :, -16:] = 100, 200  # outside the middle 120 columns
    whole = DinoEncoder(models / "dino", torch.device("cpu")).prepare(frame, None)
    assert whole[0, 0, 49, 0] == 100
    assert whole[0, 0, 49, -1] == 200
    assert not DinoEncoder(models / "dino", torch.device("cpu"), True).prepare(frame, None).any()


def test_dino_large_has_its_own_shapes(models):
    encoder = DinoEncoder(models / "dino-large", torch.device("cpu"))
    images = encoder.prepare(random_frames(2, 64, 64), None)
    assert images.shape == (2, 3, 196, 196)
    assert encoder(images).shape == (2, 1024)


def test_other_vision_models_give_their_class_token_or_pooled_output(models):
    vit = DinoEncoder(models / "vit", torch.device("cpu"))
    images = vit.prepare(random_frames(2, 64, 64), None)
    assert images.shape == (2, 3, 64, 64)
    assert vit(images).shape == (2, 32)
    assert DinoEncoder(models / "resnet", torch.device("cpu")).embedding_size == 16


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("bert", "does not take images alone"),
        ("corrupt", "holds no model that can be read"),
        ("no-weights", "holds no model that can be read"),
        ("empty", "holds no model that can be read"),
        ("incomplete", "lacks 1 of its weights, such as layernorm.weight: fetch it again"),
        ("missing", "is not there: give a folder"),
    ],
)
def test_models_that_cannot_be_used_end_in_one_sentence(models, model, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        DinoEncoder(str(models / model), torch.device("cpu"))
    sentence = capsys.readouterr().err
    assert message in sentence
    assert sentence.count("\n") == 1


def test_no_network_ends_in_one_sentence_before_anything_starts(train, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path.parent / "no-cache"))
    process = train("ppo_lstm_jci.py", "--encoder", "dino", check=False)
    assert process.returncode == 2
    assert len(process.stderr.strip().splitlines()) == 1
    assert "without a network, fetch it elsewhere with 'hf download facebook/dinov2-small" in process.stderr
    assert list(tmp_path.iterdir()) == []


def test_dino_in_vizdoom_two_iterations_then_resume(models, train):
    flags = ["--num-envs", 2, "--num-steps", 64, "--total-timesteps", 256, "--num-clusters", 10, "--encoder", "dino"]
    run = train("ppo_lstm_jci.py", *flags, "--dino-model", models / "dino")
    assert train("ppo_lstm_jci.py", "--resume", run, "--total-timesteps", 512) == run
    assert [row["global_step"] for row in read_progress(run)] == [128, 256, 384, 512]
    refused = train("ppo_lstm_jci.py", "--resume", run, "--dino-model", models / "dino-large", check=False)
    assert "the run used other weights" in refused.stderr


def test_authors_preprocessing_is_refused_with_the_noisy_tv(models, train):
    flags = ["--encoder", "dino", "--dino-model", models / "dino", "--noisy-tv", "--authors-preprocessing"]
    process = train("ppo_lstm_jci.py", *flags, check=False)
    assert process.stderr.strip() == "--authors-preprocessing cuts parts of --noisy-tv off: type only one of the two."
