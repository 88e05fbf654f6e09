"""What a ContextParallel does with tensors and batches that all ranks have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import torch

from . import _shards
from ._described import Described
from ._documents import Sequence
from ._longreach import Attention, Error


class Sharding(Described):
    """Cuts sequences into the ranks' parts, and puts them together again."""

    rank: int
    size: int

    def _note(self, sequence: Sequence) -> Attention:
        """Remembers a sequence as the last one that was sharded."""
        if sequence in self._sequences:
            self._sequences.remove(sequence)
        self._sequences.appendleft(sequence)
        return self._describe(sequence, None, True, None, None, None)

    def local_indices(
        self, tokens: Optional[int] = None, *, cu_seqlens: Any = None, sequence: Optional[Sequence] = None
    ) -> torch.Tensor:
        """The global index of each token that this rank holds, [rows], int64, in the order in which it holds them."""
        sequence = _shards.needed(sequence, tokens, cu_seqlens)
        return _shards.indices(self, self._describe(sequence, None, True, None, None, None), sequence)

    def local_positions(
        self, tokens: Optional[int] = None, *, cu_seqlens: Any = None, sequence: Optional[Sequence] = None
    ) -> torch.Tensor:
        """The position *within its document* of each of them, which rotary embeddings take: [rows], int64; [batch,
        rows] where batch rows have documents of their own."""
        sequence = _shards.needed(sequence, tokens, cu_seqlens)
        positions = _shards.positions(self, self._describe(sequence, None, True, None, None, None), sequence)
        return positions[0] if positions.shape[0] == 1 else positions

    def shard(
        self, x: torch.Tensor, dim: int = 1, *, cu_seqlens: Any = None, sequence: Optional[Sequence] = None
    ) -> torch.Tensor:
        """This rank's tokens of `x`, which has all tokens along `dim`. Differentiable. Any number of tokens will do."""
        sequence = _shards.needed(sequence, x.shape[dim], cu_seqlens)
        if sequence.tokens != x.shape[dim]:
            raise Error(f"x has {x.shape[dim]} tokens along dim {dim} and the documents {sequence.tokens}")
        attention = self._note(sequence)
        return x.index_select(dim, _shards.indices(self, attention, sequence).to(x.device))

    def unshard(
        self, x: torch.Tensor, dim: int = 1, *, cu_seqlens: Any = None, sequence: Optional[Sequence] = None
    ) -> torch.Tensor:
        """All ranks' tokens along `dim`, of the parts `x` that each holds: what `shard` undoes. Collective.

        Its gradient is that of all ranks' uses of the result, added up.
        """
        if cu_seqlens is None and sequence is None:
            sequence, _ = self._sizes(x.shape[dim], x.shape[dim], None)
        sequence = _shards.needed(sequence, None, cu_seqlens)
        return _shards.unshard(self, x, dim, self._note(sequence), sequence)

    def shard_batch(
        self, batch: Mapping[str, Any], *, cu_seqlens: Any = None, ignore_index: int = -100
    ) -> "_shards.Shard":
        """This rank's part of a batch that all ranks have.

        `batch` holds `input_ids` [batch, tokens], and optionally `labels`, `position_ids` (which begin again at 0 for
        each packed document), `attention_mask` [batch, tokens] (0 is padding) and other tensors [batch, tokens, ...].
        The documents come from `cu_seqlens` (here or in the batch), else from position_ids and attention_mask.

        Returns a dict with `input_ids`, `position_ids` within each document, `attention_mask`, `shift_labels` (labels, or input_ids
        without any, shifted by one *before* sharding; `ignore_index` at the ends of documents and in padding) and this
        rank's part of the other tensors; its attribute `sequence` is what `attention` takes, and `inputs()` what a model
        takes.
        """
        return _shards.shard_batch(self, batch, cu_seqlens, ignore_index)
