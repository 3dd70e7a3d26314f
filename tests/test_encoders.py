import torch

from common.encoders import RandomEncoder


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


def test_random_encoder_is_frozen_and_orthogonal():
    encoder = RandomEncoder()
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    for layer in encoder.network:
        if hasattr(layer, "weight"):
            weight = layer.weight.flatten(1).double()
            gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(gram, 2 * torch.eye(len(gram), dtype=torch.float64), rtol=0, atol=1e-5)
            assert not layer.bias.any()
