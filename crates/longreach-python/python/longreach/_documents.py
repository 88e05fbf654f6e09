"""Documents, bands and sequences as users give them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch

from ._longreach import Error

#: Documents of each batch row, or once those of all; a document is (first token, one past the last).
Rows = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class Fixed:
    """An edge at the same key for every query."""

    key: int


@dataclass(frozen=True)
class Diagonal:
    """An edge at key `query + offset`."""

    offset: int


@dataclass(frozen=True)
class Band:
    """Queries `q[0] .. q[1]` see the keys from `lo` up to, and without, `hi`; positions are global.

    A mask is a list of bands of which no two share a (query, key) pair. Causal attention over S tokens is
    `Band((0, S), Fixed(0), Diagonal(1))`.
    """

    q: tuple[int, int]
    lo: Union[Fixed, Diagonal]
    hi: Union[Fixed, Diagonal]


@dataclass(frozen=True)
class Sequence:
    """A sequence of `tokens` tokens over all ranks, and the documents packed into it.

    `documents` holds (first token, one past the last) pairs for each batch row, or once for all of them; tokens in
    none of them are padding. Without documents the sequence is one.

    `cut` holds such pairs for what zigzag cuts into the ranks' shards where that is not the documents: TransformerEngine
    cuts documents together with the padding behind each.
    """

    tokens: int
    documents: Optional[Rows] = None
    cut: Optional[tuple[tuple[int, int], ...]] = None

    def cut_by(self) -> Optional[tuple[tuple[int, int], ...]]:
        """What zigzag cuts: `cut`, or the documents, unless batch rows have others."""
        by = self.cut
        if by is None:
            by = self.documents[0] if self.documents is not None and len(self.documents) == 1 else ()
        return tuple((start, end) for start, end in by if start < end) or None


def given_bands(bands: Optional[Iterable[Band]]) -> Optional[list[tuple]]:
    """Bands as the module takes them."""
    if bands is None:
        return None

    def edge(side: Any) -> tuple[str, int]:
        if isinstance(side, Fixed):
            return ("fixed", side.key)
        if isinstance(side, Diagonal):
            return ("diagonal", side.offset)
        raise Error(f"a band has the edge {side!r}: it must be longreach.Fixed(key) or longreach.Diagonal(offset)")

    return [(int(band.q[0]), int(band.q[1]), edge(band.lo), edge(band.hi)) for band in bands]


def given_window(window: Any) -> Optional[tuple[Optional[int], Optional[int]]]:
    """A window (left, right) as the module takes it; -1 and None are no bound."""
    if window is None:
        return None
    try:
        left, right = window
    except (TypeError, ValueError):
        raise Error(f"window is {window!r}: it must be (left, right), with None or -1 for no bound") from None

    def side(n: Optional[int]) -> Optional[int]:
        if n is None or n == -1:
            return None
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise Error(f"window is {window!r}: its sides are whole numbers from 0, or None or -1 for no bound")
        return n

    return side(left), side(right)


def given_sequence(
    name: str, cu_seqlens: Any = None, padded: Any = None, tokens: Optional[int] = None
) -> Optional[Sequence]:
    """The sequence that `cu_seqlens` bound: one list for all batch rows, or one for each.

    `padded` is where the documents begin where each is padded, as TransformerEngine's cu_seqlens_padded. `tokens`,
    where given, is the sequence's length, and what is beyond the documents is padding.
    """
    if cu_seqlens is None:
        if padded is not None:
            raise Error(f"{name}_padded is given and {name} is not: give both")
        return None if tokens is None else Sequence(tokens)
    bounds = _rows(name, cu_seqlens)
    starts = bounds if padded is None else _rows(f"{name}_padded", padded)
    if [len(row) for row in bounds] != [len(row) for row in starts]:
        raise Error(f"{name} and {name}_padded have other lengths: both have one bound more than there are documents")
    ends = {row[-1] for row in starts}
    if tokens is None:
        if len(ends) > 1:
            raise Error(f"{name} ends at {sorted(ends)} in different batch rows: give tokens=, their common length")
        tokens = ends.pop()
    documents = []
    for row, begin in zip(bounds, starts):
        if row[0] != 0 or any(b < a for a, b in zip(row, row[1:])):
            raise Error(f"{name} is {_short(row)}: it must begin with 0 and never decrease")
        lengths = [b - a for a, b in zip(row, row[1:])]
        documents.append(tuple((start, start + length) for start, length in zip(begin, lengths)))
    return Sequence(tokens, collapsed(documents))


def collapsed(rows: list[tuple[tuple[int, int], ...]]) -> Rows:
    """The rows, or one of them where all are the same."""
    return (rows[0],) if all(row == rows[0] for row in rows) else tuple(rows)


def _rows(name: str, given: Any) -> list[list[int]]:
    if isinstance(given, torch.Tensor):
        given = given.tolist()
    try:
        given = [entry.tolist() if isinstance(entry, torch.Tensor) else entry for entry in given]
        rows = given if given and isinstance(given[0], (list, tuple)) else [given]
        rows = [[int(bound) for bound in row] for row in rows]
    except (TypeError, ValueError):
        raise Error(f"{name} is {_short(given)}: it must be whole numbers, or a list of them for each batch row") from None
    if not all(rows):
        raise Error(f"{name} has no bounds: it needs at least a 0")
    return rows


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:80] + "..."


def of_batch(position_ids: Optional[torch.Tensor], attention_mask: Optional[torch.Tensor]) -> Optional[Rows]:
    """The documents that position_ids [B, S] restart for and attention_mask [B, S] (0 is padding, other numbers tell
    documents apart) leaves; None where each row is one document without padding."""
    rows = []
    given = position_ids if position_ids is not None else attention_mask
    if given is None:
        return None
    if given.ndim != 2:
        raise Error(f"position_ids and attention_mask must be [batch, tokens]: one of them is {list(given.shape)}")
    batch, tokens = given.shape
    for row in range(batch):
        kind = torch.ones(tokens, dtype=torch.int64) if attention_mask is None else attention_mask[row].cpu().long()
        new = torch.ones(tokens, dtype=torch.bool)
        new[1:] = kind[1:] != kind[:-1]
        if position_ids is not None:
            positions = position_ids[row].cpu()
            new[1:] |= positions[1:] != positions[:-1] + 1
        starts = new.nonzero().flatten().tolist() + [tokens]
        keep = kind.tolist()
        rows.append(tuple((a, b) for a, b in zip(starts, starts[1:]) if a < b and keep[a] != 0))
    if all(row == ((0, tokens),) for row in rows):
        return None
    return collapsed(rows)
