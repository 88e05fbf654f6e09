"""Attention in float64, from the scores of all pairs, and how far something is from it."""

import torch

import longreach

TOLERANCE = 1e-5


def mask(q_len, kv_len=None, causal=True, window=None, documents=None, kv_documents=None):
    """[q_len, kv_len]; documents are (first, one past the last) pairs."""
    kv_len = q_len if kv_len is None else kv_len
    documents = [(0, q_len)] if documents is None else documents
    kv_documents = ([(0, kv_len)] if q_len != kv_len else documents) if kv_documents is None else kv_documents
    seen = torch.zeros(q_len, kv_len, dtype=torch.bool)
    query, key = torch.arange(q_len)[:, None], torch.arange(kv_len)[None]
    for (a, b), (c, d) in zip(documents, kv_documents):
        diagonal = query + (d - b)
        inside = (a <= query) & (query < b) & (c <= key) & (key < d)
        if causal:
            inside = inside & (key <= diagonal)
        if window is not None:
            left, right = window
            inside = inside & (True if left is None else key >= diagonal - left)
            inside = inside & (True if right is None else key <= diagonal + right)
        seen |= inside
    return seen


def attend(q, k, v, dout, seen, scale=None):
    """out, lse, dq, dk, dv in float64 of [batch, tokens, heads, dim] inputs; `seen` is [queries, keys] or batched."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    ratio = q.shape[2] // k.shape[2]
    qs, ks, vs = q.transpose(1, 2), k.transpose(1, 2).repeat_interleave(ratio, 1), v.transpose(1, 2).repeat_interleave(ratio, 1)
    seen = seen if seen.ndim == 2 else seen[:, None]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (qs @ ks.transpose(-1, -2) * scale).masked_fill(~seen, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse.isneginf(), 0.0)[..., None]).exp()
    out = (weights @ vs).transpose(1, 2)
    out.backward(dout.double())
    return out.detach(), lse.detach(), q.grad, k.grad, v.grad


def near(got, expected, what, tolerance=TOLERANCE):
    assert got.shape == expected.shape, f"{what}: {list(got.shape)}, expected {list(expected.shape)}"
    nothing = expected.isneginf()
    assert torch.equal(got.isneginf(), nothing), f"{what}: other rows are -inf"
    got, expected = got.double()[~nothing], expected[~nothing]
    error = float((got - expected).norm() / expected.norm().clamp(min=1e-12))
    assert error <= tolerance, f"{what}: relative error {error:.2e}"


def check(cp, q, k, v, dout, seen, sequence=None, kv_sequence=None, tolerance=TOLERANCE, **call):
    """Whole tensors through `cp`, forward and backward, against float64; gives this rank's results back."""
    sequence = sequence or longreach.Sequence(q.shape[1])
    kv_sequence = kv_sequence or (sequence if k.shape[1] == q.shape[1] else longreach.Sequence(k.shape[1]))
    with_keys = {} if kv_sequence is sequence else {"kv_sequence": kv_sequence}
    ql, dl = (cp.shard(x, sequence=sequence) for x in (q, dout))
    kl, vl = (cp.shard(x, sequence=kv_sequence) for x in (k, v))
    cp.shard(q, sequence=sequence)
    inputs = [x.detach().requires_grad_() for x in (ql, kl, vl)]
    out, lse = cp.attention(*inputs, sequence=sequence, return_lse=True, **with_keys, **call)
    out.backward(dl)
    expected = attend(q, k, v, dout, seen, call.get("scale"))
    wholes = [
        cp.unshard(out.detach(), sequence=sequence),
        cp.unshard(lse, 2, sequence=sequence),
        cp.unshard(inputs[0].grad, sequence=sequence),
        cp.unshard(inputs[1].grad, sequence=kv_sequence),
        cp.unshard(inputs[2].grad, sequence=kv_sequence),
    ]
    for name, got, want in zip(("out", "lse", "dq", "dk", "dv"), wholes, expected):
        near(got, want, name, tolerance if name != "lse" else TOLERANCE)
    return (out.detach(), lse, *(x.grad for x in inputs))


def random(batch, tokens, heads, kv_heads, dim, value_dim=None, kv_tokens=None, dtype=torch.float32):
    """q, k, v and dout of whole sequences, the same on every rank."""
    value_dim, kv_tokens = value_dim or dim, kv_tokens or tokens
    shapes = [
        (batch, tokens, heads, dim),
        (batch, kv_tokens, kv_heads, dim),
        (batch, kv_tokens, kv_heads, value_dim),
        (batch, tokens, heads, value_dim),
    ]
    return [torch.randn(shape).to(dtype) for shape in shapes]
