"""One call of attention: tensors' layouts, autograd, the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch.autograd.function import once_differentiable
from torch.utils.dlpack import to_dlpack

from ._longreach import Attention, Engine, Error, Saved

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


def outputs(q: torch.Tensor, v: torch.Tensor, layout: str, out_layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the output, and for log-sum-exps [batch, heads, rows], or [heads, rows] for thd."""
    batch, rows, heads, _ = as_bshd(q, layout).shape
    dim = v.shape[-1]
    shapes = {
        "bshd": (batch, rows, heads, dim),
        "bhsd": (batch, heads, rows, dim),
        "sbhd": (rows, batch, heads, dim),
        "thd": (rows, heads, dim),
    }
    form = (heads, rows) if layout == "thd" else (batch, heads, rows)
    return q.new_empty(shapes[out_layout]), q.new_empty(form, dtype=torch.float32)


def forward(
    engine: Engine,
    attention: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str,
    out_layout: str,
    keep: bool,
) -> tuple[torch.Tensor, torch.Tensor, Optional[Saved]]:
    """Output, log-sum-exps, and where asked what a backward needs."""
    out, lse = outputs(q, v, layout, out_layout)
    rows = (lse.unsqueeze(0) if layout == "thd" else lse).unsqueeze(-1)
    tensors = [as_bshd(x, layout) for x in (q, k, v)]
    capsules = [to_dlpack(x) for x in (*tensors, as_bshd(out, out_layout), rows)]
    return out, lse, engine.forward(attention, *capsules, keep)


def backward(
    engine: Engine,
    saved: Optional[Saved],
    dout: torch.Tensor,
    grads: Sequence[Optional[torch.Tensor]],
    layout: str,
    out_layout: str,
) -> None:
    """Writes those of dq, dk and dv that are there."""
    capsules = [None if grad is None else to_dlpack(as_bshd(grad, layout)) for grad in grads]
    engine.backward(saved, to_dlpack(as_bshd(dout, out_layout)), *capsules)


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
        out, lse, ctx.saved = forward(engine, attention, q, k, v, layout, out_layout, keep)
        ctx.engine, ctx.layout, ctx.out_layout = engine, layout, out_layout
        # The engine keeps what it computes with; of the tensors only the form is needed.
        ctx.forms = [torch.empty_like(x, device="meta") for x in (q, k, v)]
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor, _: Any) -> tuple[Optional[torch.Tensor], ...]:
        grads = [
            torch.empty_strided(form.size(), form.stride(), dtype=form.dtype) if need else None
            for form, need in zip(ctx.forms, ctx.needs_input_grad)
        ]
        backward(ctx.engine, ctx.saved, dout, grads, ctx.layout, ctx.out_layout)
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
