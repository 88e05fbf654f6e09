"""Sequences as TransformerEngine cuts them under context parallelism."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ._documents import Rows, Sequence, collapsed
from ._longreach import Error


def _bounds(name: str, given: Any) -> Optional[list[int]]:
    if given is None:
        return None
    bounds = given.tolist() if isinstance(given, torch.Tensor) else list(given)
    if not bounds or bounds[0] != 0 or any(b < a for a, b in zip(bounds, bounds[1:])):
        raise Error(f"{name} is {bounds[:8]}: it must begin with 0 and never decrease")
    return bounds


def packed(ranks: int, side: str, cu_seqlens: Any, padded: Any) -> Sequence:
    """The sequence of packed documents, each cut with its padding."""
    bounds = _bounds(f"cu_seqlens_{side}", cu_seqlens)
    if bounds is None:
        raise Error(f"qkv_format is thd and cu_seqlens_{side} is missing: give it")
    starts = _bounds(f"cu_seqlens_{side}_padded", padded) or bounds
    if len(starts) != len(bounds):
        raise Error(f"cu_seqlens_{side} has {len(bounds)} bounds and its padded ones are {len(starts)}: give as many")
    documents = []
    for a, b, start, end in zip(bounds, bounds[1:], starts, starts[1:]):
        if b - a > end - start:
            raise Error(f"a document of {b - a} tokens has {end - start} places in cu_seqlens_{side}_padded")
        if (end - start) % (2 * ranks):
            raise Error(
                f"a document takes {end - start} places of cu_seqlens_{side}: over {ranks} ranks TransformerEngine's"
                f" order needs multiples of {2 * ranks}; pad it (cu_seqlens_{side}_padded), or use cp.attention"
            )
        documents.append((start, start + b - a))
    return Sequence(starts[-1], (tuple(documents),), tuple(zip(starts, starts[1:])))


def batched(ranks: int, side: str, rows: int, batch: int, cu_seqlens: Any, padding: bool) -> Sequence:
    """The sequences of a batch, cut as wholes; with padding masks, rows end where cu_seqlens say."""
    if rows % 2:
        raise Error(
            f"{side} has {rows} rows on this rank: TransformerEngine's order needs an even number; pad the sequence to a"
            f" multiple of {2 * ranks}, or use cp.attention"
        )
    tokens = rows * ranks
    documents: Optional[Rows] = None
    if padding:
        bounds = _bounds(f"cu_seqlens_{side}", cu_seqlens)
        if bounds is None or len(bounds) != batch + 1:
            raise Error(f"a padding mask needs cu_seqlens_{side} with {batch + 1} bounds, the lengths of the batch's rows")
        documents = collapsed([((0, b - a),) for a, b in zip(bounds, bounds[1:])])
    return Sequence(tokens, documents, ((0, tokens),))
