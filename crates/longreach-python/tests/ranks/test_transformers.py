"""Models of transformers: small ones with random weights, beside their own attention in float64."""

import pytest
import torch
import transformers
from oracle import near
from transformers import LlamaConfig, MistralConfig

import longreach

SIZES = dict(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)


def model_of(cp, config, name="longreach"):
    longreach.transformers.register(cp, name)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=name)
    return model.train()


def logits_and_grads(model, cp, batch, **call):
    shard = cp.shard_batch(batch)
    logits = model(**shard.inputs(), use_cache=False, **call).logits
    cp.loss(logits, shard["shift_labels"]).backward()
    cp.sync_gradients(model)
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return cp.unshard(logits.detach(), sequence=shard.sequence), grads


def reference(model, batch, labels):
    """In float64, by the model's own attention."""
    model = model.double()
    model.set_attn_implementation("eager")
    logits = model(**batch, use_cache=False).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "config",
    [LlamaConfig(**SIZES), MistralConfig(**SIZES, sliding_window=9)],
    ids=["causal", "sliding window"],
)
@pytest.mark.parametrize("kind", ["one", "packed", "padded"])
def test_models(cp, config, kind):
    ids = torch.randint(3, 97, (2, 45))
    batch = {"input_ids": ids}
    if kind == "packed":
        batch["position_ids"] = torch.cat([torch.arange(20), torch.arange(25)]).expand(2, -1)
    if kind == "padded":
        # No more padding than the window: a row that sees nothing is NaN in the model's own attention.
        batch["attention_mask"] = (torch.arange(45) < torch.tensor([[45], [37]])).long()
    model = model_of(cp, config)
    logits, grads = logits_and_grads(model, cp, batch)
    with cp.alone():
        whole = cp.shard_batch(batch)
    expected, expected_grads = reference(model, batch, whole["shift_labels"])
    real = whole["attention_mask"].bool()
    near(logits[real], expected[real], "logits")
    for name, grad in grads.items():
        near(grad, expected_grads[name], name, 5e-5)


def test_checkpointed_layers(cp):
    batch = {"input_ids": torch.randint(3, 97, (1, 40))}
    model = model_of(cp, LlamaConfig(**SIZES))
    logits, grads = logits_and_grads(model, cp, batch)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again, same = logits_and_grads(model, cp, batch)
    assert torch.equal(logits, again) and all(torch.equal(grads[name], same[name]) for name in grads)


def test_two_models_with_different_objects(engines, cp):
    batch = {"input_ids": torch.randint(3, 97, (1, 40))}
    one = model_of(cp, LlamaConfig(**SIZES))
    other = model_of(engines["contiguous"], LlamaConfig(**SIZES), "longreach-contiguous")
    first, _ = logits_and_grads(one, cp, batch)
    second, _ = logits_and_grads(other, engines["contiguous"], batch)
    near(first, second.double(), "logits")


def test_two_batches_at_once(cp):
    # A batch is told by its positions, not by being the last one that was sharded.
    ids = torch.randint(3, 97, (1, 60))
    model = model_of(cp, LlamaConfig(**SIZES))
    expected, _ = logits_and_grads(model, cp, {"input_ids": ids})
    shard = cp.shard_batch({"input_ids": ids})
    cp.shard_batch({"input_ids": ids, "cu_seqlens": [0, 21, 60]})
    found = cp.unshard(model(**shard.inputs(), use_cache=False).logits.detach(), sequence=shard.sequence)
    assert torch.equal(found, expected)


def test_refusals(cp):
    def attend(config=LlamaConfig(**SIZES), change=None, words="", **call):
        # What only one rank may find ends a world.
        own = cp if change is None else longreach.ContextParallel(torch.distributed.new_group(), heap="4MiB")
        change = change or (lambda inputs: inputs)
        model = model_of(own, config)
        attempt(own, model, change, words, call)
        torch.distributed.barrier()

    def attempt(cp, model, change, words, call):
        shard = cp.shard_batch({"input_ids": torch.randint(3, 97, (1, 24))})
        with pytest.raises(longreach.Error) as raised:
            model(**change(shard.inputs()), **{"use_cache": False, **call})
        assert words in str(raised.value), raised.value

    def without(name):
        return lambda inputs: {key: value for key, value in inputs.items() if key != name}

    attend(LlamaConfig(**SIZES, attention_dropout=0.1), words="dropout is 0.1")
    attend(words="softcap is not supported", softcap=30.0)
    attend(words="attention sinks (s_aux)", s_aux=torch.zeros(4))
    attend(words="position biases", position_bias=torch.zeros(1))
    attend(change=lambda i: {**i, "attention_mask": torch.ones(1, 1, 24, 24)}, words="attention_mask has shape [1, 1, 24, 24]")
    attend(change=lambda i: {**i, "attention_mask": 0 * i["attention_mask"]}, words="attention_mask is of no batch")
    attend(change=lambda i: {**i, "position_ids": i["position_ids"] + 1}, words="position_ids that are of no batch")
    attend(change=without("attention_mask"), words="give it the batch's, as in model(**batch.inputs())")
    model = model_of(cp, LlamaConfig(**SIZES)).eval()
    with pytest.raises(longreach.Error, match="caches"):
        model.generate(torch.randint(3, 97, (1, 24)), max_new_tokens=2)


def test_masks_of_a_models_own_are_refused(cp):
    from transformers.masking_utils import create_causal_mask

    longreach.transformers.register(cp)
    config = LlamaConfig(**SIZES, attn_implementation="longreach")
    shard = cp.shard_batch({"input_ids": torch.randint(3, 97, (1, 24))})
    inputs = dict(config=config, inputs_embeds=torch.zeros(*shard["input_ids"].shape, 32), cache=None)
    assert create_causal_mask(**inputs, attention_mask=shard["attention_mask"]) is None
    with pytest.raises(longreach.Error, match="neither causal, full nor a sliding window"):
        # The first tokens for all, as of images.
        create_causal_mask(
            **inputs, attention_mask=shard["attention_mask"], or_mask_function=lambda b, h, q, kv: kv < 4
        )
