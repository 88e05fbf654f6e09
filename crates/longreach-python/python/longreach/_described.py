"""Calls as the engine is told of them, and the sequences that they are about."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Optional

import torch.distributed as dist

from . import _group, _shards
from ._documents import Band, Sequence, given_bands, given_window
from ._longreach import Attention, Error

#: Sequences that calls without lengths are compared with.
KEPT_SEQUENCES = 8
#: Descriptions of calls that are kept.
KEPT_CALLS = 64


def _cuts(queries: Sequence, keys: Sequence) -> Optional[tuple[Any, Any]]:
    if queries.cut is None and keys.cut is None:
        return None
    return queries.cut_by() or ((0, queries.tokens),), keys.cut_by() or ((0, keys.tokens),)


class Described:
    """Descriptions of calls, and the sequences that were sharded last."""

    group: dist.ProcessGroup
    sharding: str
    _is_alone: bool
    _sequences: "deque[Sequence]"
    _calls: dict[Any, Attention]

    def _checked(
        self,
        queries: Sequence,
        keys: Optional[Sequence],
        causal: bool,
        window: Any,
        bands: Optional[Iterable[Band]],
        scale: Optional[float],
    ) -> Attention:
        """The description of a call, if the tokens were sharded for it."""
        self._check_sharded(queries)
        return self._describe(queries, keys, causal, window, bands, scale)

    def _describe(
        self,
        queries: Sequence,
        keys: Optional[Sequence],
        causal: bool,
        window: Any,
        bands: Optional[Iterable[Band]],
        scale: Optional[float],
    ) -> Attention:
        bands = None if bands is None else tuple(bands)
        window = given_window(window)
        key = (queries, keys, causal, window, bands, scale)
        found = self._calls.get(key)
        if found is not None:
            return found
        if bands is not None and (window is not None or queries.documents or (keys and keys.documents)):
            raise Error("bands are the whole mask: leave window and cu_seqlens out, or cut the bands by them")
        found = Attention(
            queries.tokens,
            queries.tokens if keys is None else keys.tokens,
            causal=causal,
            window=window,
            documents=queries.documents,
            kv_documents=None if keys is None else keys.documents,
            bands=given_bands(bands),
            cuts=_cuts(queries, queries if keys is None else keys),
            scale=None if scale is None else float(scale),
        )
        if len(self._calls) >= KEPT_CALLS:
            self._calls.clear()
        self._calls[key] = found
        return found

    def _sizes(self, rows: int, kv_rows: int, keys: Optional[Sequence]) -> tuple[Sequence, Optional[Sequence]]:
        """The lengths that a call does not give: of the sequence that was sharded, or as the ranks tell."""
        if self._is_alone:
            return Sequence(rows), keys or (Sequence(kv_rows) if kv_rows != rows else None)
        known = {sequence.tokens for sequence in self._sequences}
        if len(known) == 1:
            # Not with its documents: a mask is what the call says. `_check_sharded` compares them.
            return Sequence(known.pop()), keys
        # With several sequences, or none, the rows of one rank do not tell which it is: all ranks ask, or none does.
        q_total, kv_total = (sum(column) for column in zip(*_group.numbers(self.group, [rows, kv_rows])))
        if keys is None and kv_total != q_total:
            keys = Sequence(kv_total)
        return Sequence(q_total), keys

    def _check_sharded(self, queries: Sequence) -> None:
        """Refuses documents under which the tokens were not sharded: zigzag follows documents."""
        same = [kept for kept in self._sequences if kept.tokens == queries.tokens]
        if same and all(kept.cut_by() != queries.cut_by() for kept in same) and self.sharding == "zigzag":
            raise Error(
                f"the sequence of {queries.tokens} tokens was sharded with {_shards.told(same[0])} and attention was"
                f" asked for with {_shards.told(queries)}: give both the same cu_seqlens, or sequence=batch.sequence"
            )
