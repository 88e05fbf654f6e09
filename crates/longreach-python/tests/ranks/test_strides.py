"""Inputs and gradients with strides of all kinds: the same bits as of contiguous ones."""

import pytest
import torch


def fused(x):
    return torch.cat([x, torch.full_like(x, float("nan"))], -1)[..., : x.shape[-1]]



def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def every_other(x):
    return torch.stack([x, torch.full_like(x, float("nan"))], -1).flatten(-2)[..., ::2]


def offset(x):
    return torch.cat([torch.full_like(x, float("nan")), x, x], 1)[:, x.shape[1] : 2 * x.shape[1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [fused, transposed, every_other, offset])
def test_inputs_and_dout(cp, form, dtype):
    tensors = [cp.shard(torch.randn(2, 64, heads, 64).to(dtype)) for heads in (4, 2, 2, 4)]

    def run(change):
        q, k, v, dout = (change(x) for x in tensors)
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        before = [x.detach().clone() for x in inputs]
        out = cp.attention(*inputs)
        out.backward(dout)
        assert all(torch.equal(x, y) for x, y in zip(inputs, before)), "inputs are left as they were"
        assert all(x.grad.shape == x.shape for x in inputs)
        return [out.detach(), *(x.grad for x in inputs)]

    assert all(not form(x).is_contiguous() or form is offset for x in tensors)
    for strided, contiguous in zip(run(form), run(torch.Tensor.contiguous)):
        assert torch.equal(strided, contiguous)


def test_a_gradient_of_one_number(cp):
    # out.sum().backward() gives a dout whose strides are 0.
    tensors = [cp.shard(torch.randn(1, 20, 2, 8)) for _ in range(3)]
    grads = []
    for whole in (False, True):
        inputs = [x.clone().requires_grad_() for x in tensors]
        out = cp.attention(*inputs)
        out.backward(torch.ones_like(out)) if whole else out.sum().backward()
        grads.append([x.grad for x in inputs])
    assert all(torch.equal(a, b) for a, b in zip(*grads))


def test_values_of_one_row_for_all_heads(cp):
    one = cp.shard(torch.randn(1, 20, 1, 8))
    q = cp.shard(torch.randn(1, 20, 4, 8))
    expanded = cp.attention(q, one.expand(-1, -1, 4, -1), one.expand(-1, -1, 4, -1))
    assert torch.equal(expanded, cp.attention(q, one, one))
