"""torch.compile takes attention into its graph whole."""

import pytest
import torch
from oracle import random

import longreach


def grads(function, inputs, dout):
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    out.backward(dout)
    return [out.detach(), *(x.grad for x in inputs)]


def check(cp, function, *, tokens=40, sequence=None, times=2):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    sequence = sequence or longreach.Sequence(tokens)
    for _ in range(times):
        *inputs, dout = (cp.shard(x, sequence=sequence) for x in random(1, tokens, 4, 2, 8))
        for got, expected in zip(grads(compiled, inputs, dout), grads(function, inputs, dout)):
            assert torch.equal(got, expected)


def test_no_graph_break(cp):
    check(cp, lambda q, k, v: cp.attention(q * 2, k, v, window=(7, None)).sin())


def test_lse_too(cp):
    def function(q, k, v):
        out, lse = cp.attention(q, k, v, causal=False, scale=0.5, return_lse=True)
        return out + lse.transpose(1, 2)[..., None].detach()

    check(cp, function)


def test_documents_do_not_compile_again(cp):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda q, k, v, b: cp.attention(q, k, v, cu_seqlens=b), backend=counter, fullgraph=True)
    for bounds in ([0, 10, 41], [0, 17, 41], [0, 40, 41]):
        q, k, v, _ = (cp.shard(x, cu_seqlens=bounds) for x in random(1, 41, 4, 2, 8))
        # A rank's rows may be one more or less for other documents, which is another shape.
        assert torch.equal(compiled(q, k, v, torch.tensor(bounds)), cp.attention(q, k, v, cu_seqlens=bounds))
    assert counter.frame_count <= 2


def test_sequences_and_bands(cp):
    sequence = longreach.Sequence(44, (((0, 9), (12, 44)),))
    check(cp, lambda q, k, v: cp.attention(q, k, v, sequence=sequence), sequence=sequence, tokens=44)
    cp._sequences.clear()
    bands = [longreach.Band((0, 40), longreach.Fixed(0), longreach.Diagonal(1))]
    check(cp, lambda q, k, v: cp.attention(q, k, v, bands=bands))
    check(cp, lambda q, k, v: cp.attention(q[0], k[0], v[0], layout="thd")[None])


def test_a_model_of_transformers(cp):
    transformers = pytest.importorskip("transformers")
    torch._dynamo.reset()
    longreach.transformers.register(cp)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="longreach")
    shard = cp.shard_batch({"input_ids": torch.randint(3, 97, (1, 40))})
    expected = model(**shard.inputs(), use_cache=False).logits
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = compiled(**shard.inputs(), use_cache=False).logits
    assert torch.allclose(found, expected, atol=1e-6)


def test_operators_are_registered_rightly(cp):
    q, k, v, _ = (cp.shard(x) for x in random(1, 40, 4, 2, 8))
    call = (cp._number, True, None, None, None, None, None, 40, None, None, "bshd", "bshd")
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.longreach.attention.default, (q.requires_grad_(), k, v, *call), test_utils=checks)
