"""Who holds which tokens; batches, the loss, and gradients over all ranks."""

import pytest
import torch
import torch.distributed as dist

import longreach
from longreach import Sequence


def held_by(cp, rank, sequence):
    gathered = [None] * cp.size
    dist.all_gather_object(gathered, cp.local_indices(sequence=sequence).tolist())
    return gathered[rank]


def test_indices_and_positions_are_two_things(cp):
    if cp.size != 2:
        return
    sequence = Sequence(8, (((0, 4), (4, 8)),))
    indices = cp.local_indices(cu_seqlens=[0, 4, 8]).tolist()
    positions = cp.local_positions(cu_seqlens=[0, 4, 8]).tolist()
    assert (indices, positions) == (([0, 3, 4, 7], [0, 3, 0, 3]), ([1, 2, 5, 6], [1, 2, 1, 2]))[cp.rank]
    assert held_by(cp, 0, sequence) == [0, 3, 4, 7]


@pytest.mark.parametrize("documents", [None, (((0, 5), (5, 16), (16, 16), (16, 64)),), (((0, 9),), ((3, 64),))])
def test_unshard_undoes_shard(engines, documents):
    sequence = Sequence(64, documents)
    for cp in engines.values():
        for x, dim in (
            (torch.arange(128).reshape(2, 64), 1),
            (torch.randn(64, 3).bfloat16(), 0),
            (torch.randn(2, 3, 64), -1),
        ):
            part = cp.shard(x, dim, sequence=sequence)
            assert torch.equal(cp.unshard(part, dim, sequence=sequence), x)
        everyone = sum((held_by(cp, rank, sequence) for rank in range(cp.size)), [])
        assert sorted(everyone) == list(range(64)), "each token has one holder"


def test_attention_uses_the_same_shards(engines):
    # With a window of one key every row gives its own value back.
    for cp in engines.values():
        v = torch.arange(61.0).reshape(1, 61, 1, 1).expand(1, 61, 1, 8)
        parts = [cp.shard(x) for x in (torch.randn(1, 61, 1, 8), torch.randn(1, 61, 1, 8), v)]
        assert torch.equal(cp.unshard(cp.attention(*parts, window=(0, 0))), v)


def test_shards_are_differentiable(cp):
    x = torch.randn(1, 13, 2, requires_grad=True)
    weight = torch.randn(1, 13, 2)
    (cp.shard(x) * cp.shard(weight)).sum().backward()
    mine = torch.zeros(1, 13, 2)
    mine[:, cp.local_indices(13)] = cp.shard(weight)
    assert torch.equal(x.grad, mine)
    part = cp.shard(x.detach()).requires_grad_()
    (cp.unshard(part) * weight).sum().backward()
    assert torch.allclose(part.grad, cp.size * cp.shard(weight)), "each rank has used the whole"


def test_a_packed_batch(cp):
    ids = torch.arange(10, 30).reshape(1, 20)
    position_ids = torch.cat([torch.arange(7), torch.arange(1), torch.arange(12)])[None]
    batch = cp.shard_batch({"input_ids": ids, "position_ids": position_ids, "weights": torch.rand(1, 20, 3)})
    assert batch.sequence == Sequence(20, (((0, 7), (7, 8), (8, 20)),))
    held = cp.local_indices(sequence=batch.sequence)
    labels = torch.cat([torch.arange(11, 17), torch.tensor([-100, -100]), torch.arange(19, 30), torch.tensor([-100])])
    assert torch.equal(batch["input_ids"], ids[:, held])
    assert torch.equal(batch["position_ids"], position_ids[:, held])
    assert torch.equal(batch["shift_labels"], labels[held][None])
    assert batch["weights"].shape == (1, len(held), 3)
    same = cp.shard_batch({"input_ids": ids, "cu_seqlens": torch.tensor([0, 7, 8, 20])})
    assert same.sequence == batch.sequence and torch.equal(same["position_ids"], batch["position_ids"])


def test_a_padded_batch(cp):
    attention_mask = torch.tensor([[1] * 9, [0, 0, 1, 1, 1, 1, 1, 0, 0]])
    ids = torch.arange(18).reshape(2, 9)
    batch = cp.shard_batch({"input_ids": ids, "attention_mask": attention_mask, "labels": ids})
    assert batch.sequence == Sequence(9, (((0, 9),), ((2, 7),)))
    whole = cp.unshard(batch["shift_labels"], sequence=batch.sequence)
    assert whole.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, -100], [-100, -100, 12, 13, 14, 15, -100, -100, -100]]
    positions = cp.unshard(batch["position_ids"], sequence=batch.sequence)
    assert positions[1, 2:7].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(batch["attention_mask"], attention_mask[:, cp.local_indices(sequence=batch.sequence)])
    assert batch.inputs().keys() == {"input_ids", "position_ids", "attention_mask"}


def test_loss_and_gradients_are_those_of_all_tokens(cp):
    weight = torch.randn(11, 6)
    ids = torch.randint(0, 11, (2, 37))
    ids_of_labels = torch.where(torch.rand(2, 37) < 0.3, -100, ids)

    def step(batch):
        w = weight.clone().requires_grad_()
        unused = torch.zeros(3, requires_grad=True)
        rare = torch.zeros(3, requires_grad=True)
        logits = torch.nn.functional.one_hot(batch["input_ids"], 11).float() @ w @ w.T
        loss = cp.loss(logits, batch["shift_labels"])
        # On one rank only.
        (loss + (rare.sum() if cp.rank == 0 else 0.0)).backward()
        cp.sync_gradients([w, unused, rare])
        return {"loss": loss, "w": w.grad, "rare": rare.grad, "unused": torch.ones(1) * (unused.grad is None)}

    batch = {"input_ids": ids, "labels": ids_of_labels}
    found = step(cp.shard_batch(batch))
    with cp.alone():
        expected = step(cp.shard_batch(batch))
    assert torch.allclose(found["loss"], expected["loss"], rtol=1e-6)
    assert torch.allclose(found["w"], expected["w"], rtol=1e-5, atol=1e-7)
    assert found["rare"].tolist() == [1.0] * 3, "a rank without a gradient has zeros"
    assert found["unused"] == 1


def test_a_loss_without_labels_is_zero(cp):
    logits = cp.shard(torch.randn(1, 5, 7)).requires_grad_()
    loss = cp.loss(logits, torch.full(logits.shape[:2], -100))
    loss.backward()
    assert loss == 0 and not logits.grad.any()


class Model(torch.nn.Module):
    def __init__(self, cp):
        super().__init__()
        torch.manual_seed(5)
        self.cp, self.embed, self.qkv = cp, torch.nn.Embedding(31, 24), torch.nn.Linear(24, 3 * 24)
        self.unembed = torch.nn.Linear(24, 31)

    def forward(self, batch, sequence):
        x = self.embed(batch["input_ids"]) + batch["position_ids"][..., None].sin()
        q, k, v = self.qkv(x).unflatten(-1, (9, 8)).split(3, 2)
        return self.unembed(self.cp.attention(q, k, v, sequence=sequence).flatten(2))


def test_verify_tells_right_from_wrong(cp, capsys):
    model = Model(cp)
    whole = {"input_ids": torch.randint(0, 31, (1, 53))}

    def step(batch, synced=True):
        batch = cp.shard_batch(batch, cu_seqlens=[0, 20, 53])
        cp.loss(model(batch, batch.sequence), batch["shift_labels"]).backward()
        if synced:
            cp.sync_gradients(model)
        return model

    errors = cp.verify(step, whole)
    assert set(errors) == {name for name, _ in model.named_parameters()}
    assert max(errors.values()) < 1e-5
    assert ("qkv.weight" in capsys.readouterr().out) == (cp.rank == 0)
    with pytest.raises(longreach.Error, match="differ by more than 1e-03 with context parallelism"):
        cp.verify(lambda batch: step(batch, synced=False), whole, show=False)
