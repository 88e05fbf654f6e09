"""Attention as operators of torch, which `torch.compile` takes into its graphs whole.

They are pure functions of tensors and numbers: what a call needs beside is looked up when it runs. The backward computes
the forward once more, since an operator keeps nothing but tensors.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Optional

import torch

from . import _call
from ._documents import Band, Diagonal, Fixed, Rows, Sequence, collapsed
from ._longreach import Error

if TYPE_CHECKING:
    from ._parallel import ContextParallel

_known: "weakref.WeakValueDictionary[int, ContextParallel]" = weakref.WeakValueDictionary()
_count = 0


def number(cp: "ContextParallel") -> int:
    """A number under which `cp` is found again."""
    global _count
    _count += 1
    _known[_count] = cp
    return _count


def documents_of(cu_seqlens: Any) -> Optional[torch.Tensor]:
    """Bounds as ranges, [rows, documents, 2], by operations that can be traced."""
    if cu_seqlens is None:
        return None
    bounds = cu_seqlens if isinstance(cu_seqlens, torch.Tensor) else torch.tensor(cu_seqlens)
    bounds = bounds if bounds.ndim == 2 else bounds.unsqueeze(0)
    return torch.stack([bounds[:, :-1], bounds[:, 1:]], dim=-1)


def of_sequence(sequence: Sequence) -> Optional[torch.Tensor]:
    """As `documents_of`, of a sequence; rows with fewer documents get empty ones at the end."""
    if sequence.documents is None:
        return None
    most = max(len(row) for row in sequence.documents)
    end = (sequence.tokens, sequence.tokens)
    return torch.tensor([[*row, *[end] * (most - len(row))] for row in sequence.documents]).reshape(-1, most, 2)


def flat(bands: Any) -> Optional[list[int]]:
    """Bands as whole numbers, six each."""
    if bands is None:
        return None
    numbers: list[int] = []
    for band in bands:
        numbers += [band.q[0], band.q[1]]
        for edge in (band.lo, band.hi):
            numbers += [0, edge.key] if isinstance(edge, Fixed) else [1, edge.offset]
    return numbers


def _bands(numbers: Optional[list[int]]) -> Optional[list[Band]]:
    if numbers is None:
        return None

    def edge(kind: int, n: int) -> Any:
        return Diagonal(n) if kind else Fixed(n)

    return [
        Band((numbers[i], numbers[i + 1]), edge(*numbers[i + 2 : i + 4]), edge(*numbers[i + 4 : i + 6]))
        for i in range(0, len(numbers), 6)
    ]


def _sequence(documents: Optional[torch.Tensor], tokens: Optional[int]) -> Optional[Sequence]:
    if documents is None:
        return None if tokens is None else Sequence(tokens)
    rows: Rows = collapsed([tuple((start, end) for start, end in row) for row in documents.tolist()])
    return Sequence(max((end for row in rows for _, end in row), default=0) if tokens is None else tokens, rows)


def _described(
    q: torch.Tensor,
    k: torch.Tensor,
    cp: int,
    causal: bool,
    window: Optional[list[int]],
    bands: Optional[list[int]],
    documents: Optional[torch.Tensor],
    kv_documents: Optional[torch.Tensor],
    position_ids: Optional[torch.Tensor],
    tokens: Optional[int],
    kv_tokens: Optional[int],
    scale: Optional[float],
    layout: str,
) -> tuple[Any, Any]:
    """The engine and the description of a call."""
    owner = _known.get(cp)
    if owner is None:
        raise Error("the ContextParallel of a compiled function is gone: keep it, or compile again")
    rows, kv_rows = (_call.as_bshd(x, layout).shape[1] for x in (q, k))
    keys = _sequence(kv_documents, kv_tokens)
    if position_ids is not None:
        from .transformers import sequence_of

        queries = sequence_of(owner, position_ids, rows)
    else:
        queries = _sequence(documents, tokens)
    if queries is None:
        queries, keys = owner._sizes(rows, kv_rows, keys)
    sides = None if window is None else tuple(window)
    return owner, owner._checked(queries, keys, causal, sides, _bands(bands), scale)


@torch.library.custom_op("longreach::attention", mutates_args=())
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cp: int,
    causal: bool,
    window: Optional[list[int]],
    bands: Optional[list[int]],
    documents: Optional[torch.Tensor],
    kv_documents: Optional[torch.Tensor],
    position_ids: Optional[torch.Tensor],
    tokens: Optional[int],
    kv_tokens: Optional[int],
    scale: Optional[float],
    layout: str,
    out_layout: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    call = (cp, causal, window, bands, documents, kv_documents, position_ids, tokens, kv_tokens, scale, layout)
    owner, described = _described(q, k, *call)
    out, lse, _ = _call.forward(owner._open(), described, q, k, v, layout, out_layout, False)
    return out, lse


@attention.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _call.outputs(q, v, *call[-2:])


@torch.library.custom_op("longreach::attention_backward", mutates_args=())
def attention_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cp: int,
    causal: bool,
    window: Optional[list[int]],
    bands: Optional[list[int]],
    documents: Optional[torch.Tensor],
    kv_documents: Optional[torch.Tensor],
    position_ids: Optional[torch.Tensor],
    tokens: Optional[int],
    kv_tokens: Optional[int],
    scale: Optional[float],
    layout: str,
    out_layout: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    call = (cp, causal, window, bands, documents, kv_documents, position_ids, tokens, kv_tokens, scale, layout)
    owner, described = _described(q, k, *call)
    _, _, saved = _call.forward(owner._open(), described, q, k, v, layout, out_layout, True)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    _call.backward(owner._open(), saved, dout, grads, layout, out_layout)
    return grads[0], grads[1], grads[2]


@attention_backward.register_fake
def _(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *call: Any) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    tensors = [x if isinstance(x, torch.Tensor) else None for x in inputs]
    ctx.save_for_backward(*tensors)
    ctx.others = [None if isinstance(x, torch.Tensor) else x for x in inputs]


def _backward(ctx: Any, dout: torch.Tensor, _: Any) -> tuple[Any, ...]:
    inputs = [other if tensor is None else tensor for tensor, other in zip(ctx.saved_tensors, ctx.others)]
    return (*attention_backward(dout, *inputs), *[None] * (len(inputs) - 3))


attention.register_autograd(_backward, setup_context=_setup)
