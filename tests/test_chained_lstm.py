"""common.chained_lstm against the loop over nn.LSTMCell that it replaces."""

import pytest
import torch
from torch import nn

from common.chained_lstm import chained_lstm

FEATURES, HIDDEN = 24, 16


@pytest.fixture(autouse=True)
def one_thread():
    """These tensors are too small to be worth sharing out between threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plain_loop(inputs, dones, state, first, second):
    h, c = state
    outputs = []
    for x, done in zip(inputs, dones.to(inputs.dtype)):
        h, c = (1 - done)[:, None] * h, (1 - done)[:, None] * c
        h, c = first(x, (h, c))
        h, c = second(x, (h, c))
        outputs.append(h)
    return torch.stack(outputs), (h, c)


def no_resets(T, N):
    return torch.zeros(T, N)


def random_resets(T, N):
    return (torch.rand(T, N) < 0.15).float()


def first_step_resets(T, N):
    dones = torch.zeros(T, N)
    dones[0, ::2] = 1
    return dones


def consecutive_resets(T, N):
    dones = torch.zeros(T, N)
    dones[T // 3 : T // 3 + 3, N - 1] = 1
    return dones


def common_resets(T, N):
    dones = torch.zeros(T, N)
    dones[T // 2] = 1
    return dones


RESETS = [no_resets, random_resets, first_step_resets, consecutive_resets, common_resets]
SHAPES = [(64, 4), (1, 32), (9, 1)]


def make_case(T, N, features=FEATURES, hidden=HIDDEN, dtype=torch.float32, bias=True):
    torch.manual_seed(T * 100 + N)
    cells = [nn.LSTMCell(features, hidden, bias=bias, dtype=dtype) for _ in range(2)]
    for parameter in (p for cell in cells for p in cell.parameters()):
        nn.init.uniform_(parameter, -0.5, 0.5)
    inputs = torch.randn(T, N, features, dtype=dtype, requires_grad=True)
    state = tuple(torch.randn(N, hidden, dtype=dtype, requires_grad=True) for _ in range(2))
    return inputs, state, cells


def results_and_gradients(function, inputs, dones, state, cells, loss_weights):
    """Outputs, final state, and the gradients of a weighted sum of them in everything that can have one."""
    outputs, (h, c) = function(inputs, dones, state, *cells)
    results = {"outputs": outputs, "final h": h, "final c": c}
    loss = sum((weight * result).sum() for weight, result in zip(loss_weights, results.values()))
    leaves = {"inputs": inputs, "h": state[0], "c": state[1]}
    leaves.update((f"{order}.{name}", p) for order, cell in enumerate(cells) for name, p in cell.named_parameters())
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    results.update((f"gradient of {name}", gradient) for name, gradient in zip(leaves, gradients))
    return results


def assert_equal_to_loop(inputs, dones, state, cells, use_outputs=1.0, use_final=1.0, tolerance=1e-5):
    T, N, hidden = *inputs.shape[:2], state[0].shape[1]
    scale = 1 / (T * N)
    loss_weights = [
        use_outputs * scale * torch.randn(T, N, hidden, dtype=inputs.dtype),
        use_final * torch.randn(N, hidden, dtype=inputs.dtype),
        use_final * torch.randn(N, hidden, dtype=inputs.dtype),
    ]
    expected = results_and_gradients(plain_loop, inputs, dones, state, cells, loss_weights)
    actual = results_and_gradients(chained_lstm, inputs, dones, state, cells, loss_weights)
    for name, value in expected.items():
        error = (actual[name] - value).abs().max().item()
        assert error <= tolerance * max(1, value.abs().max().item()), f"{name}: error {error}"


@pytest.mark.parametrize("make_dones", RESETS)
@pytest.mark.parametrize("T, N", SHAPES)
def test_equals_the_loop_in_results_and_gradients(T, N, make_dones):
    inputs, state, cells = make_case(T, N)
    assert_equal_to_loop(inputs, make_dones(T, N), state, cells)


@pytest.mark.parametrize("use_outputs, use_final", [(1.0, 0.0), (0.0, 1.0)])
def test_losses_on_the_outputs_alone_and_on_the_final_state_alone(use_outputs, use_final):
    inputs, state, cells = make_case(12, 3)
    assert_equal_to_loop(inputs, random_resets(12, 3), state, cells, use_outputs, use_final)


def test_equals_the_loop_at_the_sizes_of_the_agent():
    inputs, state, cells = make_case(64, 4, features=288, hidden=256)
    for cell in cells:
        cell.reset_parameters()
    assert_equal_to_loop(inputs, random_resets(64, 4), state, cells)


@pytest.mark.parametrize("bias", [True, False])
def test_double_precision_and_cells_without_bias(bias):
    inputs, state, cells = make_case(20, 3, dtype=torch.float64, bias=bias)
    assert_equal_to_loop(inputs, random_resets(20, 3), state, cells, tolerance=1e-12)


def test_boolean_dones_and_strided_inputs():
    inputs, state, cells = make_case(10, 3)
    strided = inputs.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    assert_equal_to_loop(strided, random_resets(10, 3).bool(), state, cells)


@pytest.mark.parametrize("make_dones", RESETS)
def test_gradcheck(make_dones):
    inputs, state, cells = make_case(5, 2, features=3, hidden=2, dtype=torch.float64)
    dones = make_dones(5, 2)
    parameters = [p for cell in cells for p in cell.parameters()]

    def function(inputs, h, c, *_):
        outputs, (h, c) = chained_lstm(inputs, dones, (h, c), *cells)
        return outputs, h, c

    assert torch.autograd.gradcheck(function, (inputs, *state, *parameters))


def test_backward_can_run_twice():
    inputs, state, cells = make_case(6, 2)
    outputs, _ = chained_lstm(inputs, random_resets(6, 2), state, *cells)
    once = torch.autograd.grad(outputs.sum(), inputs, retain_graph=True)
    again = torch.autograd.grad(outputs.sum(), inputs)
    assert torch.equal(*once, *again)


@torch.no_grad()
def test_one_call_equals_single_steps_that_carry_the_state():
    T, N = 20, 4
    inputs, state, cells = make_case(T, N)
    dones = random_resets(T, N)
    expected, (expected_h, expected_c) = chained_lstm(inputs, dones, state, *cells)
    outputs = []
    for t in range(T):
        output, state = chained_lstm(inputs[t : t + 1], dones[t : t + 1], state, *cells)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(state[0], expected_h, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(state[1], expected_c, atol=1e-6, rtol=1e-6)


def test_with_and_without_gradients_agree():
    inputs, state, cells = make_case(7, 3)
    dones = random_resets(7, 3)
    outputs, (h, c) = chained_lstm(inputs, dones, state, *cells)
    with torch.no_grad():
        outputs_without, (h_without, c_without) = chained_lstm(inputs, dones, state, *cells)
    assert torch.equal(outputs, outputs_without)
    assert torch.equal(h, h_without) and torch.equal(c, c_without)


def test_arguments_and_earlier_results_are_left_alone():
    inputs, state, cells = make_case(7, 3)
    dones = random_resets(7, 3)
    before = [tensor.detach().clone() for tensor in (inputs, dones, *state)]
    with torch.no_grad():
        outputs, final_state = chained_lstm(inputs, dones, state, *cells)
        kept = outputs.clone()
        for tensor in final_state:
            tensor.zero_()
    assert all(torch.equal(a, b) for a, b in zip(before, (inputs, dones, *state)))
    assert torch.equal(outputs, kept)


@torch.no_grad()
def test_a_reset_forgets_everything_before_it():
    T, N, reset_step, env = 12, 3, 5, 1
    inputs, state, cells = make_case(T, N)
    dones = torch.zeros(T, N)
    dones[reset_step, env] = 1
    other_inputs, other_state = inputs.clone(), [tensor + 1 for tensor in state]
    other_inputs[:reset_step] += 1
    outputs, (h, c) = chained_lstm(inputs, dones, state, *cells)
    others, (other_h, other_c) = chained_lstm(other_inputs, dones, other_state, *cells)
    torch.testing.assert_close(others[reset_step:, env], outputs[reset_step:, env], atol=1e-6, rtol=0)
    torch.testing.assert_close(other_h[env], h[env], atol=1e-6, rtol=0)
    torch.testing.assert_close(other_c[env], c[env], atol=1e-6, rtol=0)
    difference = (others - outputs).abs().amax(dim=-1)  # (T, N)
    assert (difference[:reset_step] > 1e-3).all()  # before the reset the past matters,
    assert (difference[reset_step, [0, 2]] > 1e-3).all()  # and so it does where there was none


def test_gradients_stop_at_a_reset():
    inputs, state, cells = make_case(8, 2)
    dones = torch.zeros(8, 2)
    dones[4, 0] = 1
    outputs, _ = chained_lstm(inputs, dones, state, *cells)
    grad_inputs, grad_h, grad_c = torch.autograd.grad(outputs[4:].sum(), (inputs, *state))
    assert (grad_inputs[:4, 0] == 0).all() and (grad_h[0] == 0).all() and (grad_c[0] == 0).all()
    assert (grad_inputs[:4, 1] != 0).any() and (grad_h[1] != 0).any() and (grad_c[1] != 0).any()


def test_wrong_shapes_are_named():
    inputs, (h, c), cells = make_case(3, 2)
    dones = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="inputs"):
        chained_lstm(inputs[0], dones, (h, c), *cells)
    with pytest.raises(ValueError, match="inputs"):
        chained_lstm(inputs[..., :-1], dones, (h, c), *cells)
    with pytest.raises(ValueError, match="inputs"):
        chained_lstm(inputs[:0], dones[:0], (h, c), *cells)
    with pytest.raises(ValueError, match="dones"):
        chained_lstm(inputs, dones.t(), (h, c), *cells)
    with pytest.raises(ValueError, match="h and c"):
        chained_lstm(inputs, dones, (h[:1], c), *cells)
    with pytest.raises(ValueError, match="cells"):
        chained_lstm(inputs, dones, (h, c), cells[0], nn.LSTMCell(FEATURES, HIDDEN + 1))
