"""Two LSTM cells applied one after the other at every time step, over a whole sequence with episode resets.

Both cells read the same input; the second one continues from the state that the first one has just produced:

    (h, c) = (1 - dones[t]) * (h, c)
    (h, c) = first(inputs[t], (h, c))
    (h, c) = second(inputs[t], (h, c)),    outputs[t] = h

A loop over nn.LSTMCell projects the inputs and adds up the weight gradients on N rows at a time. Here each projection
is one matmul over all T * N rows, and the backward pass is written by hand so that its loop holds only what is truly
sequential and each weight gradient is one matmul over all T * N rows after it.

Shapes: T time steps, N environments, F input features, H hidden units; gates in the order i, f, g, o of nn.LSTMCell.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional


def chained_lstm(inputs, dones, state, first, second):
    """Run the nn.LSTMCells `first` and `second` over inputs (T, N, F) from state = (h, c), each (N, H).

    Where dones (T, N) is 1 or True, the state is zeroed before the step. Returns the outputs (T, N, H) and the final
    (h, c), differentiable (once) in the inputs, the state and the parameters of the cells.
    """
    h, c = state
    _check_shapes(inputs, dones, h, c, first, second)
    if len(inputs) == 1 and not torch.is_grad_enabled():  # a rollout step has nothing to gather
        x, keep = inputs[0], 1 - dones.to(inputs.dtype).t()  # (N, F), (N, 1)
        h, c = second(x, first(x, (keep * h, keep * c)))
        return h[None], (h, c)
    keep = 1 - dones.to(inputs.dtype).unsqueeze(-1)  # (T, N, 1)
    projections = [
        functional.linear(inputs, cell.weight_ih, cell.bias_ih + cell.bias_hh if cell.bias else None)  # (T, N, 4H)
        for cell in (first, second)
    ]
    resets = dones.any(dim=1).tolist()  # the steps at which the mask has to be applied at all
    outputs, h, c = _Recurrence.apply(*projections, first.weight_hh, second.weight_hh, h, c, keep, resets)
    return outputs, (h, c)


def _check_shapes(inputs, dones, h, c, first, second):
    features, hidden = first.input_size, first.hidden_size
    if (second.input_size, second.hidden_size) != (features, hidden):
        raise ValueError(f"both cells must have the same sizes, got {first} and {second}")
    if dones.dim() != 2 or len(dones) == 0 or inputs.shape != (*dones.shape, features):
        raise ValueError(f"inputs must be (T >= 1, N, {features}), dones (T, N), got {inputs.shape}, {dones.shape}")
    if not h.shape == c.shape == (dones.shape[1], hidden):
        raise ValueError(f"h and c must be {(dones.shape[1], hidden)}, got {tuple(h.shape)} and {tuple(c.shape)}")


class _Recurrence(torch.autograd.Function):
    """The recurrence alone; the input projections, with the biases, are left to autograd.

    Gates are kept apart, as (T, 4, N, H), and a step's matmul is a batch of four: with few rows, threads share out a
    batch better than a matmul.
    """

    @staticmethod
    def forward(ctx, first_projection, second_projection, first_weight, second_weight, h, c, keep, resets):
        ctx.resets, initial_state = resets, (h, c)
        rest = [first_projection.new_empty(*keep.shape[:2], h.shape[1]) for _ in range(8)]
        first = (_gates_apart(first_projection), *rest[:4])  # (T, 4, N, H), then g, c, tanh(c), h, each (T, N, H)
        second = (_gates_apart(second_projection), *rest[4:])
        first_weight, second_weight = (weight.unflatten(0, (4, -1)) for weight in (first_weight, second_weight))
        first_weight_t, second_weight_t = first_weight.transpose(1, 2), second_weight.transpose(1, 2)
        for t, (first_step, second_step) in enumerate(zip(_split_steps(*first), _split_steps(*second))):
            if resets[t]:
                h, c = keep[t] * h, keep[t] * c
            h, c = _cell_forward(h, c, first_weight_t, *first_step)
            h, c = _cell_forward(h, c, second_weight_t, *second_step)
        ctx.save_for_backward(first_weight, second_weight, *initial_state, keep, *first, *second)
        return second[-1], h.clone(), c.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_outputs, grad_h, grad_c):
        first_weight, second_weight, h, c, keep, *activations = ctx.saved_tensors
        first, second = activations[:5], activations[5:]
        first_c, first_h, second_c, second_h = first[2], first[4], second[2], second[4]
        # What enters the first cell is what the second one left behind a step earlier, or zeros after a reset.
        h_entering = keep * torch.cat((h.unsqueeze(0), second_h[:-1]))
        c_entering = keep * torch.cat((c.unsqueeze(0), second_c[:-1]))
        first_dgates, *first_steps = _local_derivatives(c_entering, *first)
        second_dgates, *second_steps = _local_derivatives(first_c, *second)
        dh, dc = grad_h + grad_outputs[-1], grad_c.clone()
        dh_by_gate = h.new_empty(4, *h.shape)
        grad_earlier = (torch.zeros_like(dh), *grad_outputs[:-1].unbind(0))  # [t]: what outputs[t - 1] gets directly
        steps = zip(ctx.resets, keep, grad_earlier, zip(*first_steps), zip(*second_steps))
        for reset, keep_t, grad_t, first_step, second_step in reversed(list(steps)):
            torch.bmm(_cell_backward(dh, dc, *second_step), second_weight, out=dh_by_gate)
            torch.sum(dh_by_gate, 0, out=dh)
            torch.bmm(_cell_backward(dh, dc, *first_step), first_weight, out=dh_by_gate)
            torch.sum(dh_by_gate, 0, out=dh)
            if reset:
                dh.mul_(keep_t)
                dc.mul_(keep_t)
            dh.add_(grad_t)
        first_dgates, second_dgates = _gates_together(first_dgates), _gates_together(second_dgates)
        first_dweight = first_dgates.flatten(0, 1).t() @ h_entering.flatten(0, 1)  # (4H, T * N) @ (T * N, H)
        second_dweight = second_dgates.flatten(0, 1).t() @ first_h.flatten(0, 1)
        return first_dgates, second_dgates, first_dweight, second_dweight, dh, dc, None, None


def _gates_apart(projection):
    """A copy of (T, N, 4H), as (T, 4, N, H)."""
    return projection.unflatten(-1, (4, -1)).transpose(1, 2).clone(memory_format=torch.contiguous_format)


def _gates_together(gates):
    """(T, 4, N, H) -> (T, N, 4H)"""
    return gates.transpose(1, 2).flatten(2)


def _split_steps(gates, *others):
    return zip(*(buffer.unbind(0) for buffer in (gates, *gates.unbind(1), *others)))


def _cell_forward(h_prev, c_prev, weight, gates, i, f, g_input, o, g, c, tanh_c, h):
    gates.baddbmm_(h_prev.expand(4, -1, -1), weight)
    torch.tanh(g_input, out=g)
    gates.sigmoid_()  # i, f, o in one call; what it leaves in place of g is never used
    torch.mul(f, c_prev, out=c).addcmul_(i, g)  # c = f * c_prev + i * g
    torch.tanh(c, out=tanh_c)
    torch.mul(o, tanh_c, out=h)
    return h, c


def _local_derivatives(c_prev, gates, g, c, tanh_c, h):
    """What dc (for i, f, g) and dh (for o) are multiplied by to give dgates; whole, and in views for _cell_backward."""
    i, f, _, o = gates.unbind(1)
    factors = torch.addcmul(gates, gates, gates, value=-1)  # s * (1 - s): the slope of a sigmoid of value s
    factors[:, 0].mul_(g)
    factors[:, 1].mul_(c_prev)
    torch.addcmul(i, i * g, g, value=-1, out=factors[:, 2])  # i * (1 - g^2)
    factors[:, 3].mul_(tanh_c)
    dh_dc = torch.addcmul(o, h, tanh_c, value=-1)  # o * (1 - tanh(c)^2), as h = o * tanh(c)
    return (factors, *(view.unbind(0) for view in (factors, factors[:, :3], factors[:, 3], dh_dc, f)))


def _cell_backward(dh, dc, dgates, by_dc, by_dh, dh_dc, f):
    """Turn one step's factors into gate gradients, in place, and move dc on to the state before the cell."""
    dc.addcmul_(dh, dh_dc)
    by_dc.mul_(dc)
    by_dh.mul_(dh)
    dc.mul_(f)
    return dgates
