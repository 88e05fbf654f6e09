"""Attention on one rank, dense: what `verify` compares with."""

from __future__ import annotations

import torch

from ._call import as_bshd
from ._longreach import Attention


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Attention, layout: str, out_layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of a whole sequence, from the scores of all (query, key) pairs, at least in float32."""
    qs, ks, vs = (as_bshd(x, layout).transpose(1, 2).to(_at_least_float32(x.dtype)) for x in (q, k, v))
    batch, heads, rows, dim = qs.shape
    ratio = heads // ks.shape[1]
    ks, vs = ks.repeat_interleave(ratio, 1), vs.repeat_interleave(ratio, 1)
    seen = visible(call, batch, rows, ks.shape[2]).unsqueeze(1)
    scores = (qs @ ks.transpose(-1, -2) * call.scale(dim)).masked_fill(~seen, float("-inf"))
    lse = scores.logsumexp(-1)
    # A row that sees nothing gives 0, and so do its gradients.
    weights = (scores - lse.masked_fill(lse.isneginf(), 0.0).unsqueeze(-1)).exp()
    out = (weights @ vs).transpose(1, 2).to(q.dtype)
    shaped = {"bshd": out, "bhsd": out.transpose(1, 2), "sbhd": out.transpose(0, 1), "thd": out[0]}[out_layout]
    lse = lse.detach()
    return shaped, lse[0] if layout == "thd" else lse


def visible(call: Attention, batch: int, rows: int, keys: int) -> torch.Tensor:
    """[batch, queries, keys], whether a query sees a key."""
    seen = torch.zeros((batch, rows, keys), dtype=torch.bool)
    query, key = torch.arange(rows).unsqueeze(1), torch.arange(keys).unsqueeze(0)
    for row, bands in enumerate(call.bands(batch)):
        for start, end, lo, hi in bands:
            edges = [n + query if kind == "diagonal" else torch.tensor(n) for kind, n in (lo, hi)]
            seen[row] |= (start <= query) & (query < end) & (edges[0] <= key) & (key < edges[1])
    return seen


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
