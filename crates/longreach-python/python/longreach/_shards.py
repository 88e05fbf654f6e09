"""Who holds which tokens: tensors and batches cut into the ranks' parts, and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

import torch
import torch.distributed as dist

from ._documents import Sequence, given_sequence, of_batch
from ._longreach import Attention, Error

if TYPE_CHECKING:
    from ._sharding import Sharding


class Shard(dict):
    """A rank's part of a batch; `sequence` tells the whole sequence's tokens and documents."""

    sequence: Sequence

    def inputs(self) -> dict[str, Any]:
        """What a model takes: all but the labels."""
        return {name: value for name, value in self.items() if name != "shift_labels"}


def needed(sequence: Optional[Sequence], tokens: Optional[int], cu_seqlens: Any) -> Sequence:
    """The sequence that a function's arguments describe."""
    found = sequence or given_sequence("cu_seqlens", cu_seqlens, None, tokens)
    if found is None:
        raise Error("the sequence's length is missing: give tokens, cu_seqlens or sequence")
    return found


def told(sequence: Sequence) -> str:
    documents = sequence.cut_by()
    return "no documents" if documents is None else f"{len(documents)} documents"


def indices(cp: "Sharding", attention: Attention, sequence: Sequence) -> torch.Tensor:
    if cp._is_alone:
        return torch.arange(sequence.tokens)
    return _whole(attention.indices(cp.rank, cp.size, _batch(sequence), cp.sharding))


def positions(cp: "Sharding", attention: Attention, sequence: Sequence) -> torch.Tensor:
    """[rows of documents, or 1; tokens of this rank]."""
    batch = _batch(sequence)
    rank, size = (0, 1) if cp._is_alone else (cp.rank, cp.size)
    # One rank of one holds all tokens in order only where the layout is contiguous.
    sharding = "contiguous" if cp._is_alone else cp.sharding
    return _whole(attention.positions(rank, size, batch, sharding)).reshape(batch, -1)


def real(cp: "Sharding", sequence: Sequence) -> torch.Tensor:
    """Which of this rank's tokens are in a document: [rows of documents, or 1; tokens of this rank]."""
    whole = torch.zeros((_batch(sequence), sequence.tokens), dtype=torch.bool)
    for row, documents in enumerate(sequence.documents or (((0, sequence.tokens),),)):
        for start, end in documents:
            whole[row, start:end] = True
    return whole[:, indices(cp, cp._describe(sequence, None, True, None, None, None), sequence)]


def _batch(sequence: Sequence) -> int:
    return 1 if sequence.documents is None else len(sequence.documents)


def _whole(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.int64) if raw else torch.empty(0, dtype=torch.int64)


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dim: int, lengths: list[int], order: torch.Tensor, group: dist.ProcessGroup
    ) -> torch.Tensor:
        rank = dist.get_rank(group)
        ctx.dim, ctx.order, ctx.group = dim, order, group
        ctx.span = (sum(lengths[:rank]), lengths[rank])
        own = x.transpose(0, dim).contiguous()
        # Ranks hold different numbers of tokens, and an all-gather takes equal ones.
        longest = max(lengths)
        padded = own.new_zeros((longest, *own.shape[1:]))
        padded[: own.shape[0]] = own
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded, group=group)
        held = torch.cat([part[:length] for part, length in zip(parts, lengths)])
        whole = torch.empty_like(held)
        whole[order] = held
        return whole.transpose(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Optional[torch.Tensor], ...]:
        whole = grad.contiguous()
        dist.all_reduce(whole, group=ctx.group)
        start, length = ctx.span
        return whole.index_select(ctx.dim, ctx.order[start : start + length]), None, None, None, None


def unshard(cp: "Sharding", x: torch.Tensor, dim: int, attention: Attention, sequence: Sequence) -> torch.Tensor:
    if cp._is_alone:
        return x
    batch = _batch(sequence)
    lengths = attention.lengths(cp.size, batch, cp.sharding)
    if x.shape[dim] != lengths[cp.rank]:
        raise Error(
            f"x has {x.shape[dim]} tokens along dim {dim}: rank {cp.rank} holds {lengths[cp.rank]} of"
            f" {sequence.tokens} under {cp.sharding}"
        )
    order = torch.cat([_whole(attention.indices(rank, cp.size, batch, cp.sharding)) for rank in range(cp.size)])
    return _Unshard.apply(x, dim % x.ndim, lengths, order.to(x.device), cp.group)


def shard_batch(cp: "Sharding", batch: Mapping[str, Any], cu_seqlens: Any, ignore_index: int) -> Shard:
    ids = batch.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        raise Error("the batch has no input_ids [batch, tokens]: shard_batch needs them")
    rows, tokens = ids.shape
    if cu_seqlens is None:
        cu_seqlens = batch.get("cu_seqlens")
    if cu_seqlens is not None:
        sequence = given_sequence("cu_seqlens", cu_seqlens, None, tokens)
        assert sequence is not None
    else:
        sequence = Sequence(tokens, of_batch(batch.get("position_ids"), batch.get("attention_mask")))
    if sequence.documents is not None and len(sequence.documents) not in (1, rows):
        raise Error(f"cu_seqlens are of {len(sequence.documents)} batch rows and input_ids have {rows}")
    attention = cp._note(sequence)
    held = indices(cp, attention, sequence).to(ids.device)
    shard = Shard()
    shard.sequence = sequence
    shard["input_ids"] = ids.index_select(1, held)
    shard["position_ids"] = positions(cp, attention, sequence).to(ids.device).expand(rows, -1).contiguous()
    shard["attention_mask"] = real(cp, sequence).to(ids.device, torch.int64).expand(rows, -1).contiguous()
    shifted = batch.get("shift_labels")
    if shifted is None:
        shifted = _shifted(batch.get("labels", ids), sequence, ignore_index)
    shard["shift_labels"] = shifted.index_select(1, held)
    dropped = ("input_ids", "position_ids", "labels", "shift_labels", "attention_mask", "cu_seqlens")
    for name, value in batch.items():
        if name not in dropped and isinstance(value, torch.Tensor) and value.shape[:2] == ids.shape:
            shard[name] = value.index_select(1, held)
    return shard


def _shifted(labels: torch.Tensor, sequence: Sequence, ignore_index: int) -> torch.Tensor:
    """Each token's next one in its document."""
    shifted = torch.full_like(labels, ignore_index)
    documents = list(sequence.documents or (((0, sequence.tokens),),))
    for row in range(labels.shape[0]):
        for start, end in documents[row % len(documents)]:
            if end - start > 1:
                shifted[row, start : end - 1] = labels[row, start + 1 : end]
    return shifted
