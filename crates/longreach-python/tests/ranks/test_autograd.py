"""What autograd does with attention."""

import itertools

import pytest
import torch
from oracle import random
from torch.utils.checkpoint import checkpoint

import longreach


def parts(cp, tokens=40):
    return [cp.shard(x) for x in random(1, tokens, 4, 2, 8)]


def grads(cp, q, k, v, dout, wanted=(True, True, True)):
    inputs = [x.clone().requires_grad_(wants) for x, wants in zip((q, k, v), wanted)]
    cp.attention(*inputs).backward(dout)
    return [x.grad for x in inputs]


def test_gradients_for_those_who_ask(cp):
    q, k, v, dout = parts(cp)
    everything = grads(cp, q, k, v, dout)
    for wanted in itertools.product([True, False], repeat=3):
        if any(wanted):
            for got, expected, wants in zip(grads(cp, q, k, v, dout, wanted), everything, wanted):
                assert torch.equal(got, expected) if wants else got is None


def test_without_gradients(cp):
    q, k, v, dout = parts(cp)
    q.requires_grad_()
    with torch.no_grad():
        out = cp.attention(q, k, v)
    assert not out.requires_grad
    assert torch.equal(out, cp.attention(q, k, v).detach())
    assert torch.equal(out, cp.attention(q.detach(), k, v))


def test_lse_has_no_gradient(cp):
    q, k, v, dout = parts(cp)
    out, lse = cp.attention(q.requires_grad_(), k, v, return_lse=True)
    assert out.requires_grad and not lse.requires_grad
    out.backward(dout)


def test_backwards_in_reverse_order(cp):
    first, second = parts(cp), [x + 0.5 for x in parts(cp, 71)]
    expected = grads(cp, *first), grads(cp, *second)
    inputs = [[x.clone().requires_grad_() for x in each[:3]] for each in (first, second)]
    outs = [cp.attention(*each) for each in inputs]
    for out, each, given in reversed(list(zip(outs, inputs, (first, second)))):
        out.backward(given[3])
    for each, right in zip(inputs, expected):
        assert all(torch.equal(x.grad, y) for x, y in zip(each, right))


def test_a_graph_is_differentiated_once(cp):
    q, k, v, dout = parts(cp)
    out = cp.attention(q.requires_grad_(), k, v)
    out.backward(dout, retain_graph=True)
    with pytest.raises(longreach.Error, match="retain_graph is not supported, call attention again"):
        out.backward(dout)
    cp.attention(q, k, v)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(cp, reentrant):
    q, k, v, dout = parts(cp)
    expected = grads(cp, q, k, v, dout)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    checkpoint(cp.attention, *inputs, use_reentrant=reentrant).backward(dout)
    assert all(torch.equal(x.grad, y) for x, y in zip(inputs, expected))


def test_accumulation(cp):
    first, second = parts(cp), parts(cp)
    one, other = grads(cp, *first), grads(cp, second[0], *first[1:3], second[3])
    k, v = (x.clone().requires_grad_() for x in first[1:3])
    for q, dout in ((first[0], first[3]), (second[0], second[3])):
        cp.attention(q, k, v).backward(dout)
    assert torch.equal(k.grad, one[1] + other[1]) and torch.equal(v.grad, one[2] + other[2])


def test_two_objects_of_one_group(cp):
    other = longreach.ContextParallel(heap="8MiB", sharding="contiguous", timeout=60)
    mine, theirs = parts(cp), parts(other)
    expected = grads(cp, *mine), grads(other, *theirs)
    inputs = [[x.clone().requires_grad_() for x in each[:3]] for each in (mine, theirs)]
    outs = [cp.attention(*inputs[0]), other.attention(*inputs[1])]
    (outs[0] * mine[3]).sum().add((outs[1] * theirs[3]).sum()).backward()
    for each, right in zip(inputs, expected):
        assert all(torch.equal(x.grad, y) for x, y in zip(each, right))
    other.close()
    with pytest.raises(longreach.Error, match="has been closed: make a new one"):
        other.attention(*theirs[:3])


def test_the_same_bits_each_time(cp):
    given = parts(cp, 200)
    first = grads(cp, *given)
    for _ in range(5):
        assert all(torch.equal(x, y) for x, y in zip(grads(cp, *given), first))
