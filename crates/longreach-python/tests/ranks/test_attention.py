"""Attention, forward and backward, against float64."""

import pytest
import torch
from oracle import check, mask, near, random

import longreach
from longreach import Band, Diagonal, Fixed, Sequence

SHARDINGS = ["zigzag", "contiguous", "striped"]


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 7, 65])
def test_any_length(engines, sharding, causal, tokens):
    check(engines[sharding], *random(2, tokens, 4, 2, 16), mask(tokens, causal=causal), causal=causal)


@pytest.mark.parametrize("heads,kv_heads", [(1, 1), (8, 1), (6, 3), (28, 7), (12, 12), (40, 8)])
def test_grouped_heads(cp, heads, kv_heads):
    check(cp, *random(1, 33, heads, kv_heads, 8), mask(33))


@pytest.mark.parametrize("dim,value_dim", [(64, 64), (192, 128), (24, 40)])
def test_head_dimensions(cp, dim, value_dim):
    check(cp, *random(1, 40, 2, 1, dim, value_dim), mask(40), scale=0.3)


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("window", [(0, None), (15, 0), (16, None), (100, -1), (600, 0)])
def test_windows(engines, sharding, window):
    left, right = (None if side == -1 else side for side in window)
    check(engines[sharding], *random(1, 130, 2, 1, 8), mask(130, window=(left, right)), window=window)


def test_a_window_on_both_sides(cp):
    check(cp, *random(1, 90, 2, 1, 8), mask(90, causal=False, window=(3, 20)), causal=False, window=(3, 20))


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("bounds", [[0, 0, 37, 37, 100, 128, 128], [0, 1, 2, 100], [0, 9, 16, 24, 36, 44, 56]])
@pytest.mark.parametrize("window", [None, (10, 0)])
def test_packed_documents(engines, sharding, bounds, window):
    documents = list(zip(bounds, bounds[1:]))
    sequence = Sequence(bounds[-1], (tuple(documents),))
    seen = mask(bounds[-1], documents=documents, window=window)
    check(engines[sharding], *random(1, bounds[-1], 4, 1, 16), seen, sequence, window=window)


def test_documents_of_each_batch_row_and_padding(engines):
    rows = (((0, 11), (11, 50)), ((3, 40),))
    seen = torch.stack([mask(50, documents=row) for row in rows])
    for cp in engines.values():
        results = check(cp, *random(2, 50, 4, 2, 8), seen, Sequence(50, rows))
        positions = cp.local_indices(sequence=Sequence(50, rows))
        padding = (positions < 3) | (positions >= 40)
        out, lse, *grads = results
        assert all(not x[1, padding].any() for x in (out, *grads)), "padding gets zeros"
        assert lse[1, :, padding].isneginf().all()


def test_padding_passes_nothing_on(cp):
    # Real tokens 0-2 and 4-8 of 16; NaN in the others changes no bit.
    sequence = Sequence(16, (((0, 3), (4, 9)),))
    held = cp.local_indices(sequence=sequence)
    real = ((held < 3) | ((held >= 4) & (held < 9)))[None, :, None, None]
    tensors = [cp.shard(x, sequence=sequence) for x in random(1, 16, 2, 2, 32)]

    def run(fill):
        q, k, v, dout = (torch.where(real, x, torch.tensor(fill)) for x in tensors)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        out, lse = cp.attention(*inputs, cu_seqlens=[0, 3, 8], cu_seqlens_padded=[0, 4, 16], return_lse=True)
        out.backward(dout)
        return [out.detach(), lse, *(x.grad for x in inputs)]

    for clean, dirty in zip(run(0.0), run(float("nan"))):
        assert torch.equal(clean, dirty)


def test_more_keys_than_queries(cp):
    check(cp, *random(1, 20, 4, 2, 8, kv_tokens=61), mask(20, 61))
    q_documents, kv_documents = [(0, 0), (0, 12), (12, 20), (20, 20)], [(0, 25), (25, 42), (42, 51), (51, 61)]
    seen = mask(20, 61, causal=False, documents=q_documents, kv_documents=kv_documents)
    given = random(1, 20, 4, 1, 16, kv_tokens=61)
    check(cp, *given, seen, Sequence(20, (tuple(q_documents),)), Sequence(61, (tuple(kv_documents),)), causal=False)


def test_rows_that_see_no_key(cp):
    bounds, kv_bounds = [0, 7, 10, 24], [0, 1, 2, 3]
    seen = mask(24, 3, documents=list(zip(bounds, bounds[1:])), kv_documents=list(zip(kv_bounds, kv_bounds[1:])))
    sequence, keys = (longreach.Sequence(b[-1], (tuple(zip(b, b[1:])),)) for b in (bounds, kv_bounds))
    check(cp, *random(1, 24, 2, 1, 8, kv_tokens=3), seen, sequence, keys)


def test_bands(cp):
    # Prefix-LM: the first 10 keys for all, causal beyond.
    bands = [Band((0, 10), Fixed(0), Fixed(10)), Band((10, 45), Fixed(0), Diagonal(1))]
    seen = mask(45) | (torch.arange(45)[None] < 10)
    check(cp, *random(1, 45, 2, 2, 8), seen, bands=bands)


@pytest.mark.parametrize("dtype,tolerance", [(torch.bfloat16, 6e-3), (torch.float16, 8e-4)])
def test_sixteen_bits_round_once(cp, dtype, tolerance):
    out, _, dq, *_ = check(cp, *random(1, 70, 4, 2, 16, dtype=dtype), mask(70), tolerance=tolerance)
    assert out.dtype == dq.dtype == dtype


@pytest.mark.parametrize("layout,order", [("bhsd", (0, 2, 1, 3)), ("sbhd", (1, 0, 2, 3))])
def test_layouts_are_views_of_one(cp, layout, order):
    q, k, v, dout = (cp.shard(x) for x in random(2, 31, 4, 2, 8))
    results = []
    for how in ("bshd", layout):
        turn = (0, 1, 2, 3) if how == "bshd" else order
        inputs = [x.permute(turn).contiguous().requires_grad_() for x in (q, k, v)]
        out, lse = cp.attention(*inputs, layout=how, return_lse=True)
        out.backward(dout.permute(turn))
        back = [turn.index(i) for i in range(4)]
        results.append([x.permute(back) for x in (out.detach(), *(x.grad for x in inputs))] + [lse])
    for one, other in zip(*results):
        assert torch.equal(one, other)


def test_packed_layout_has_no_batch(cp):
    bounds = [0, 5, 16, 16, 64]
    q, k, v, _ = (cp.shard(x, cu_seqlens=bounds) for x in random(1, 64, 4, 2, 8))
    expected, lse = cp.attention(q, k, v, cu_seqlens=torch.tensor(bounds), return_lse=True)
    out, packed = cp.attention(q[0], k[0], v[0], cu_seqlens=bounds, layout="thd", return_lse=True)
    assert torch.equal(out, expected[0]) and torch.equal(packed, lse[0])


def test_uniform_weights_give_means_exactly(cp):
    # With q = 0 each visible key weighs the same: any key that is dropped, doubled or leaked moves the mean.
    k = torch.randn(1, 512, 1, 32)
    v = torch.arange(512.0).reshape(1, 512, 1, 1).expand(1, 512, 1, 32)
    q = torch.zeros(1, 512, 1, 32)
    parts = [cp.shard(x) for x in (q, k, v)]
    out, lse = (x for x in cp.attention(*parts, window=(100, 0), return_lse=True))
    out, lse = cp.unshard(out)[0, :, 0, 0], cp.unshard(lse, 2)[0, 0]
    rows = torch.tensor([0, 63, 64, 128, 511])
    near(out[rows], torch.tensor([0, 31.5, 32, 78, 461]).double(), "means", 1e-6)
    assert abs(float(lse[511]) - 4.615121) < 1e-5


def test_large_scores_do_not_overflow(cp):
    for low, high in ((0.0, 10.0), (10.0, 0.0), (-10.0, 10.0), (0.0, -20.0)):
        q, k, v = (torch.zeros(1, 64, 1, 64) for _ in range(3))
        q[..., 0] = 10.0
        k[:, :32, :, 0], k[:, 32:, :, 0] = low, high
        v[:, :32], v[:, 32:] = 1.0, 2.0
        out, lse = cp.attention(*(cp.shard(x) for x in (q, k, v)), causal=False, scale=1.0, return_lse=True)
        assert torch.allclose(out, torch.full_like(out, 1.0 if low > high else 2.0), atol=1e-6)
        assert torch.allclose(lse, torch.full_like(lse, 10 * max(low, high) + 3.465736), atol=1e-4)


def test_a_bound_on_memory_takes_more_stages(cp):
    sizes = dict(q_heads=4, kv_heads=4, head_dim=64, dtype=torch.float32)
    usual = cp.plan(2000, **sizes)
    bound = usual.total_bytes * 9 // 10
    less = longreach.ContextParallel(heap="32MiB", memory=bound, timeout=60)
    plan = less.plan(2000, **sizes)
    assert usual.stages == 1 and plan.stages > 1 and plan.total_bytes <= bound
    assert f"{plan.stages} fetched stages" in str(plan)
    check(less, *random(1, 2000, 4, 4, 64), mask(2000))
    less.close()
