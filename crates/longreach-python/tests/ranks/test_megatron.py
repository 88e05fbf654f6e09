"""Modules and functions that are called as TransformerEngine's, in its order of tokens."""

import inspect

import pytest
import torch
import torch.distributed as dist
from oracle import attend, mask, near, random

import longreach
from longreach import megatron


@pytest.fixture
def used(cp):
    megatron.use(cp)
    return cp


def chunks(x, dim, ranks, rank, bounds=None):
    """A rank's part as TransformerEngine cuts it: two chunks of the sequence, or of each document with its padding."""
    bounds = bounds or [0, x.shape[dim]]
    held = []
    for start, end in zip(bounds, bounds[1:]):
        size = (end - start) // (2 * ranks)
        for chunk in (rank, 2 * ranks - 1 - rank):
            held += range(start + chunk * size, start + (chunk + 1) * size)
    return x.index_select(dim, torch.tensor(held, dtype=torch.int64))


def run(module, cp, tensors, dim, bounds=None, **call):
    """Output and gradients of this rank."""
    q, k, v, dout = (chunks(x, dim, cp.size, cp.rank, bounds) for x in tensors)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = module(*inputs, **call)
    out.backward(dout.reshape(out.shape))
    return [out.detach().reshape(dout.shape), *(x.grad for x in inputs)]


def compare(cp, found, expected, dim, bounds=None):
    for name, got, whole in zip(("out", "dq", "dk", "dv"), found, (expected[0], *expected[2:])):
        near(got, chunks(whole, dim, cp.size, cp.rank, bounds), name)


@pytest.mark.parametrize("form,dim", [("bshd", 1), ("sbhd", 0)])
@pytest.mark.parametrize("kind,window", [("causal", None), ("causal", (5, 0)), ("no_mask", (-1, -1)), ("no_mask", None)])
def test_batches(used, form, dim, kind, window):
    tokens = 12 * used.size
    tensors = random(2, tokens, 4, 2, 8)
    sides = None if window is None else tuple(None if n == -1 else n for n in window)
    expected = attend(*tensors, mask(tokens, causal=kind == "causal", window=sides))
    if form == "sbhd":
        tensors = [x.transpose(0, 1) for x in tensors]
        expected = [x.transpose(0, 1) if x.ndim == 4 else x for x in expected]
    module = megatron.DotProductAttention(4, 8, num_gqa_groups=2, qkv_format=form, attn_mask_type=kind, window_size=window)
    with pytest.raises(longreach.Error, match="no group is set"):
        module(*tensors[:3])
    ranks = dist.get_process_group_ranks(used.group)
    module.set_context_parallel_group(used.group, ranks, None, "p2p")
    found = run(module, used, tensors, dim)
    compare(used, found, expected, dim)
    again = run(module, used, tensors, dim, checkpoint_core_attention=True)
    assert all(torch.equal(x, y) for x, y in zip(found, again))


@pytest.mark.parametrize("kind", ["padding_causal", "padding"])
def test_packed_documents_with_padding(used, kind):
    unit = 2 * used.size
    lengths, places = [unit, 3 * unit - 1, 0, unit - 3, 2], [unit, 3 * unit, 0, unit, 2 * unit]
    bounds, padded = [0], [0]
    for length, place in zip(lengths, places):
        bounds.append(bounds[-1] + length)
        padded.append(padded[-1] + place)
    documents = [(start, start + length) for start, length in zip(padded, lengths)]
    tokens = padded[-1]
    tensors = random(1, tokens, 4, 2, 8)
    expected = attend(*tensors, mask(tokens, causal=kind != "padding", documents=documents))
    for fill in (0.0, float("nan")):
        given = [x[0].clone() for x in tensors]
        real = torch.zeros(tokens, dtype=torch.bool)
        for start, end in documents:
            real[start:end] = True
        for x in given:
            x[~real] = fill
        found = run(
            lambda q, k, v, **call: megatron.attn_forward_func_with_cp(True, q, k, v, **call),
            used,
            given,
            0,
            padded,
            cu_seqlens_q=torch.tensor(bounds),
            cu_seqlens_kv=torch.tensor(bounds),
            cu_seqlens_q_padded=torch.tensor(padded),
            cu_seqlens_kv_padded=torch.tensor(padded),
            cp_group=used.group,
            qkv_format="thd",
            attn_mask_type=kind,
        )
        compare(used, found, [x[0] for x in expected], 0, padded)


def test_rows_beyond_the_documents_are_zero(used):
    unit = 2 * used.size
    module = megatron.DotProductAttention(2, 8, qkv_format="thd", attn_mask_type="padding_causal", cp_group=used.group)
    q = torch.randn(2 * 3 + 5, 2, 8)
    out = module(q, q, q, cu_seqlens_q=[0, 3 * unit], cu_seqlens_kv=[0, 3 * unit])
    assert out.shape == (11, 16) and not out[6:].any() and out[:6].all()


def test_rows_of_a_batch_that_end_early(used):
    tokens = 8 * used.size
    lengths = [tokens, tokens - 5]
    tensors = random(2, tokens, 2, 2, 8)
    seen = torch.stack([mask(tokens, documents=[(0, length)]) for length in lengths])
    expected = attend(*tensors, seen)
    module = megatron.DotProductAttention(2, 8, qkv_format="bshd", attn_mask_type="padding_causal", cp_group=used.group)
    bounds = torch.tensor([0, lengths[0], sum(lengths)])
    compare(used, run(module, used, tensors, 1, cu_seqlens_q=bounds, cu_seqlens_kv=bounds), expected, 1)
    same = torch.tensor([0, tokens - 5, 2 * (tokens - 5)])
    seen = torch.stack([mask(tokens, documents=[(0, tokens - 5)])] * 2)
    found = run(module, used, tensors, 1, cu_seqlens_q=same, cu_seqlens_kv=same)
    compare(used, found, attend(*tensors, seen), 1)


def test_more_keys_than_queries(used):
    tokens, kv_tokens = 4 * used.size, 10 * used.size
    tensors = random(1, tokens, 2, 1, 8, kv_tokens=kv_tokens)
    expected = attend(*tensors, mask(tokens, kv_tokens))
    module = megatron.DotProductAttention(2, 8, qkv_format="bshd", attn_mask_type="causal_bottom_right", cp_group=used.group)
    compare(used, run(module, used, tensors, 1), expected, 1)
    parts = [chunks(x, 1, used.size, used.rank) for x in tensors[:3]]
    with pytest.raises(longreach.Error, match="use causal_bottom_right"):
        module(*parts, attn_mask_type="causal")


def test_what_is_not_supported_is_refused_by_name(used):
    q = torch.randn(6, 1, 2, 8)
    module = megatron.DotProductAttention(2, 8, cp_group=used.group)
    bounds = [0, 4 * used.size, 4 * used.size + 1]
    for call, words in (
        (lambda: megatron.DotProductAttention(2, 8, attention_dropout=0.1), "attention_dropout is 0.1"),
        (lambda: megatron.DotProductAttention(2, 8, softmax_type="learnable"), "softmax_type is 'learnable'"),
        (lambda: megatron.DotProductAttention(2, 8, novelty=3), "novelty is 3: this argument is not known"),
        (lambda: module.set_context_parallel_group([used.group] * 2, None, None, "a2a+p2p"), "hierarchical"),
        (lambda: module.set_context_parallel_group(used.group, [7], None), r"cp_global_ranks are [7]"),
        (lambda: module.set_context_parallel_group(used.group, None, None, "pigeon"), "cp_comm_type is 'pigeon'"),
        (lambda: module(q, q, q, attention_mask=torch.ones(1)), "attention_mask is a tensor"),
        (lambda: module(q, q, q, core_attention_bias_type="alibi"), "core_attention_bias_type is 'alibi'"),
        (lambda: module(q, q, q, alibi_slopes=q), "alibi_slopes is a tensor"),
        (lambda: module(q, q, q, inference_params=1), "inference_params is 1"),
        (lambda: module(q, q, q, attn_mask_type="arbitrary"), "attn_mask_type is 'arbitrary'"),
        (lambda: module(q, q, q, qkv_format="hdbs"), "qkv_format is 'hdbs'"),
        (lambda: module(q[:5], q[:5], q[:5]), "q has 5 rows on this rank"),
        (lambda: module(q[:, :, :1], q, q), "query_layer has 1 heads and the module 2"),
        (lambda: module(q[:, 0], q[:, 0], q[:, 0], qkv_format="thd"), "cu_seqlens_q is missing"),
        (
            lambda: module(q[:, 0], q[:, 0], q[:, 0], qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds),
            "a document takes 1 places of cu_seqlens_q",
        ),
        (lambda: megatron.attn_forward_func_with_cp(True, q, q, q, fp8=True, cp_group=used.group), "fp8 is True"),
        (lambda: megatron.use(longreach.ContextParallel(heap=0, sharding="striped")), "sharding is 'striped'"),
    ):
        with pytest.raises(longreach.Error) as raised:
            call()
        assert words in str(raised.value), raised.value


def test_the_keywords_are_theirs():
    names = list(inspect.signature(megatron.attn_forward_func_with_cp).parameters)
    assert names[:4] == ["is_training", "q", "k", "v"] and names[10:15] == [
        "dropout_p",
        "cp_group",
        "cp_global_ranks",
        "cp_stream",
        "cp_comm_type",
    ]
