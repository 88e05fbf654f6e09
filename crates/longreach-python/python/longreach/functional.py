"""Attention with torch's own signature."""

from __future__ import annotations

from typing import Optional

import torch

from . import _sdpa
from ._longreach import Error


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention of this rank's rows over all ranks' keys.

    `query`, `key` and `value` are [batch, heads, rows, head_dim] (or without a batch). Works within
    `longreach.context_parallel(cp, ...)`, whose group it uses. Masks as tensors and dropout are refused.
    """
    if attn_mask is not None:
        raise Error("attn_mask is given: masks are not tensors here; use is_causal, or cp.attention with bands")
    if dropout_p > 0.0:
        raise Error(f"dropout_p is {dropout_p}: dropout is not supported; apply it outside attention, or give 0")
    heads = [x.shape[-3] if x.ndim > 2 else 1 for x in (query, key)]
    if heads[0] != heads[1] and not enable_gqa:
        raise Error(f"query has {heads[0]} heads and key {heads[1]}: give enable_gqa=True")
    cp, sequence = _sdpa.current()
    if query.ndim < 3 or query.ndim > 4:
        raise Error(f"query has shape {list(query.shape)}: it must be [batch, heads, rows, head_dim]")
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise Error(
            f"is_causal with {query.shape[-2]} queries and {key.shape[-2]} keys of this rank: torch aligns them top-left"
            " and longreach bottom-right; use cp.attention with bands"
        )
    tensors = [x if x.ndim == 4 else x.unsqueeze(0) for x in (query, key, value)]
    out = cp.attention(*tensors, causal=is_causal, scale=scale, layout="bhsd", sequence=sequence)
    return out if query.ndim == 4 else out[0]
