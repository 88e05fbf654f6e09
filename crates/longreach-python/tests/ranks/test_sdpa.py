"""torch's attention function, and the context that routes it here."""

import pytest
import torch
import torch.nn.functional as F
from oracle import attend, mask, near, random

import longreach

NATIVE = F.scaled_dot_product_attention


def test_the_context_shards_and_restores(cp):
    q, k, v, dout = (x.transpose(1, 2) for x in random(2, 45, 4, 4, 8))
    positions = torch.arange(45)
    buffers = [q.clone(), k.clone(), v.clone(), positions.clone()]
    with longreach.context_parallel(cp, buffers=buffers, seq_dims=[2, 2, 2, 0]):
        assert torch.equal(buffers[3], cp.local_indices(45))
        out = F.scaled_dot_product_attention(*buffers[:3], is_causal=True)
        assert out.shape == buffers[0].shape == cp.shard(q, 2).shape
    assert F.scaled_dot_product_attention is NATIVE
    assert all(torch.equal(x, y) for x, y in zip(buffers, (q, k, v, positions)))
    expected, *_ = attend(*(x.transpose(1, 2) for x in (q, k, v, dout)), mask(45))
    near(cp.unshard(out, 2), expected.transpose(1, 2), "out")


def test_documents_and_buffers_that_stay(cp):
    x = torch.randn(1, 30, 2, 8)
    part = x.clone()
    with longreach.context_parallel(cp, buffers=[part], seq_dims=[1], no_restore_buffers={part}, cu_seqlens=[0, 13, 30]):
        given = [part.transpose(1, 2)] * 3
        out = F.scaled_dot_product_attention(*given, is_causal=True)
        assert torch.equal(out[0], longreach.functional.scaled_dot_product_attention(*(x[0] for x in given), is_causal=True))
    assert torch.equal(part, cp.shard(x, cu_seqlens=[0, 13, 30]))
    seen = mask(30, documents=[(0, 13), (13, 30)])
    expected, *_ = attend(x, x, x, x, seen)
    whole = cp.unshard(out, 2, cu_seqlens=[0, 13, 30])
    near(whole.transpose(1, 2), expected, "out")


def test_refusals(cp):
    q = cp.shard(torch.randn(1, 4, 24, 8), 2)
    sdpa = longreach.functional.scaled_dot_product_attention
    with pytest.raises(longreach.Error, match="no context is open"):
        sdpa(q, q, q)
    with longreach.context_parallel(cp):
        for call, words in (
            (dict(attn_mask=torch.ones(1)), "attn_mask is given"),
            (dict(dropout_p=0.1), "dropout_p is 0.1"),
        ):
            with pytest.raises(longreach.Error, match=words):
                sdpa(q, q, q, **call)
        with pytest.raises(longreach.Error, match="give enable_gqa=True"):
            sdpa(q, q[:, :2], q[:, :2])
        assert sdpa(q, q[:, :2], q[:, :2], is_causal=True, enable_gqa=True).shape == q.shape
    with pytest.raises(longreach.Error, match="1 buffers and 0 seq_dims"):
        with longreach.context_parallel(cp, buffers=[q]):
            pass
    assert F.scaled_dot_product_attention is NATIVE
