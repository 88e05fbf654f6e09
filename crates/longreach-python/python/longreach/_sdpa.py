"""torch's attention function routed here for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

import torch
import torch.nn.functional as F

from ._documents import Sequence, given_sequence
from ._longreach import Error

if TYPE_CHECKING:
    from ._parallel import ContextParallel

_current: "list[tuple[ContextParallel, Optional[Sequence]]]" = []


def current() -> "tuple[ContextParallel, Optional[Sequence]]":
    """The ContextParallel whose context we are in, and the sequence of its buffers."""
    if not _current:
        raise Error("no context is open: use it within `with longreach.context_parallel(cp, ...)`")
    return _current[-1]


@contextmanager
def context_parallel(
    cp: "ContextParallel",
    *,
    buffers: Optional[Iterable[torch.Tensor]] = None,
    seq_dims: Optional[Iterable[int]] = None,
    no_restore_buffers: Optional[set[torch.Tensor]] = None,
    cu_seqlens: Any = None,
) -> Iterator[None]:
    """Within, `buffers` hold this rank's tokens only, and torch.nn.functional.scaled_dot_product_attention attends over
    all ranks' keys, as in torch's own context of that name.

    `buffers` have all tokens along `seq_dims` and are changed in place; those not in `no_restore_buffers` are as before
    afterwards. All have as many tokens. What holds positions must be among them.
    """
    from .functional import scaled_dot_product_attention

    buffers, seq_dims = list(buffers or ()), list(seq_dims or ())
    if len(buffers) != len(seq_dims):
        raise Error(f"{len(buffers)} buffers and {len(seq_dims)} seq_dims: give one for each")
    lengths = {buffer.shape[dim] for buffer, dim in zip(buffers, seq_dims)}
    if len(lengths) > 1:
        raise Error(f"the buffers have {sorted(lengths)} tokens: all must have as many")
    kept = []
    keep = no_restore_buffers or set()
    sequence = given_sequence("cu_seqlens", cu_seqlens, None, lengths.pop() if lengths else None)
    with torch.no_grad():
        for buffer, dim in zip(buffers, seq_dims):
            if buffer.requires_grad:
                raise Error("a buffer requires a gradient: shard it with cp.shard, which is differentiable")
            own = cp.shard(buffer, dim, sequence=sequence)
            if not any(buffer is other for other in keep):
                kept.append((buffer, buffer.clone()))
            buffer.resize_(own.shape).copy_(own)
    before = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = scaled_dot_product_attention
    _current.append((cp, sequence))
    try:
        yield
    finally:
        _current.pop()
        F.scaled_dot_product_attention = before
        with torch.no_grad():
            for buffer, whole in kept:
                buffer.resize_(whole.shape).copy_(whole)
