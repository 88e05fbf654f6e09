"""One call of attention: tensors' layouts, autograd, the engine."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.utils.dlpack import to_dlpack

from ._longreach import Attention, Engine, Error

#: How each tensor layout becomes [batch, sequence, heads, dim], and back, by views.
LAYOUTS = ("bshd", "bhsd", "sbhd", "thd")


def as_bshd(x: torch.Tensor, layout: str) -> torch.Tensor:
    """A view of `x` as [batch, sequence, heads, dim]."""
    if layout == "bshd":
        return x
    if layout == "bhsd":
        return x.transpose(1, 2)
    if layout == "sbhd":
        return x.transpose(0, 1)
    return x.unsqueeze(0)


def check_layout(layout: str, **tensors: torch.Tensor) -> None:
    """Refuses what is no layout, and tensors of other dimensions than its."""
    if layout not in LAYOUTS:
        raise Error(f"layout is {layout!r}: it must be one of {', '.join(LAYOUTS)}")
    dims = 3 if layout == "thd" else 4
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise Error(f"{name} is a {type(tensor).__name__}: it must be a tensor")
        if tensor.ndim != dims:
            raise Error(f"{name} has shape {list(tensor.shape)}: layout {layout} has {dims} dimensions")


def _empty(like: torch.Tensor, layout: str, batch: int, rows: int, heads: int, dim: int) -> torch.Tensor:
    shapes = {
        "bshd": (batch, rows, heads, dim),
        "bhsd": (batch, heads, rows, dim),
        "sbhd": (rows, batch, heads, dim),
        "thd": (rows, heads, dim),
    }
    return like.new_empty(shapes[layout])


class Call(torch.autograd.Function):
    """Attention of this rank's queries over all ranks' keys; backward publishes keys and values again."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        engine: Engine,
        attention: Attention,
        layout: str,
        out_layout: str,
        keep: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        views = [as_bshd(x, layout) for x in (q, k, v)]
        batch, rows, heads, _ = views[0].shape
        out = _empty(q, out_layout, batch, rows, heads, views[2].shape[-1])
        lse = q.new_empty((batch, heads, rows, 1), dtype=torch.float32)
        capsules = [to_dlpack(x) for x in (*views, as_bshd(out, out_layout), lse)]
        ctx.saved = engine.forward(attention, *capsules, keep)
        ctx.engine, ctx.layout, ctx.out_layout = engine, layout, out_layout
        # The engine keeps what it computes with; of the tensors only the form is needed.
        ctx.forms = [torch.empty_like(x, device="meta") for x in (q, k, v)]
        lse = lse[..., 0]
        if layout == "thd":
            lse = lse[0]
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, _: Any) -> tuple[Optional[torch.Tensor], ...]:
        grads = [
            torch.empty_strided(form.size(), form.stride(), dtype=form.dtype) if need else None
            for form, need in zip(ctx.forms, ctx.needs_input_grad)
        ]
        capsules = [None if g is None else to_dlpack(as_bshd(g, ctx.layout)) for g in grads]
        ctx.engine.backward(ctx.saved, to_dlpack(as_bshd(dout, ctx.out_layout)), *capsules)
        return (*grads, None, None, None, None, None)


def run(
    engine: Engine,
    attention: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str,
    out_layout: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of a call; autograd joins where it is on and an input asks for a gradient."""
    keep = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return Call.apply(q, k, v, engine, attention, layout, out_layout, keep)
