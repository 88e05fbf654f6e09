"""Context parallelism over a process group."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from . import _alone, _call, _compiled, _group, _shards, _world
from ._described import KEPT_SEQUENCES
from ._documents import Band, Sequence, given_sequence
from ._longreach import Attention, Engine, Error, Plan, slots_of
from ._sharding import Sharding
from ._training import Training

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def bytes_of(heap: Union[int, str], name: str = "heap") -> int:
    """Bytes that `heap` says: a whole number, or text such as "2GiB" or "512MB"."""
    if isinstance(heap, int) and not isinstance(heap, bool) and heap >= 0:
        return heap
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", heap) if isinstance(heap, str) else None
    unit = _UNITS.get(found.group(2).upper()) if found else None
    if found is None or unit is None:
        raise Error(f'{name} is {heap!r}: it must be bytes, or text such as "2GiB" or "512MB"')
    return int(float(found.group(1)) * unit)


class ContextParallel(Sharding, Training):
    """Attention over sequences whose tokens are spread over the ranks of a process group.

    Creating one is collective over the group: the ranks meet (once a group), streams start, and `heap` bytes of
    symmetric memory are reserved on each rank. Nothing later allocates symmetric memory, but `reserve`. All ranks give
    the same arguments, but `threads`.

    Args:
        group: a ProcessGroup that this rank is in, a DeviceMesh of one dimension, or None for all ranks.
        device: "cpu"; CUDA devices are not reached from Python yet.
        heap: bytes of symmetric memory a rank, such as "2GiB". It is divided so that any dtype fits; `reserve` sizes
            it exactly. Memory that is not used is not taken from the machine.
        sharding: who holds which tokens: "zigzag" (balances causal masks), "contiguous", "striped" or
            "striped:BLOCK".
        threads: compute threads of this rank; None is `torch.get_num_threads()`, which torchrun makes 1.
        stages: into how many fetched stages a call is cut; None leaves it to the cost model.
        memory: bound on symmetric and scratch bytes of a call, such as "4GiB", for which it is cut into more stages.
        timeout: seconds without progress after which a rank is given up; None is LONGREACH_DEADLINE, or 600. A rank
            that dies is noticed at once.

    Its ranks (`rank`, `size`) are those of the group.
    """

    def __init__(
        self,
        group: Any = None,
        device: Union[str, torch.device] = "cpu",
        heap: Union[int, str] = "2GiB",
        *,
        sharding: str = "zigzag",
        threads: Optional[int] = None,
        stages: Optional[int] = None,
        memory: Union[int, str, None] = None,
        timeout: Optional[float] = None,
    ) -> None:
        self.group = _group.resolve(group)
        self.device = torch.device(device)
        if self.device.type != "cpu":
            raise Error(f"device is {device}: today longreach's Python package runs on CPU tensors only, give cpu")
        self.rank: int = dist.get_rank(self.group)
        self.size: int = dist.get_world_size(self.group)
        self.sharding = sharding
        self._threads = torch.get_num_threads() if threads is None else threads
        self._stages = stages
        self._memory = None if memory is None else bytes_of(memory, "memory")
        self._slots = slots_of(bytes_of(heap))
        self._sequences: deque[Sequence] = deque(maxlen=KEPT_SEQUENCES)
        self._calls: dict[Any, Attention] = {}
        self._is_alone = False
        self._number = _compiled.number(self)
        timeout = _world.default_timeout() if timeout is None else float(timeout)
        options = {
            "device": self.device.type,
            "heap": bytes_of(heap),
            "sharding": sharding,
            "stages": stages,
            "memory": self._memory,
            "timeout": timeout,
        }
        # Refused here, where it costs nothing, and alike on all ranks.
        Attention(0, 0, causal=True).lengths(1, 1, sharding)
        self._world, self._team = _world.meet(self.group, options, timeout)
        self._engine: Optional[Engine] = self._new_engine()

    def _new_engine(self) -> Engine:
        publish, contribution = self._slots
        engine = Engine(
            self._team,
            layout=self.sharding,
            publish=publish,
            contribution=contribution,
            threads=self._threads,
            stages=self._stages,
            memory=self._memory,
        )
        _world.watch(engine)
        return engine

    def __repr__(self) -> str:
        state = "closed" if self._engine is None else f"heap {self.heap_bytes} bytes"
        return f"ContextParallel(rank {self.rank} of {self.size}, {self.device}, {self.sharding}, {state})"

    @property
    def heap_bytes(self) -> int:
        """Bytes of symmetric memory that this rank holds."""
        return self._open().heap_bytes

    def _open(self) -> Engine:
        if self._engine is None:
            raise Error("this ContextParallel has been closed: make a new one")
        return self._engine

    def _refusal(self, text: str) -> Error:
        """An error that other ranks may not find: they would wait for this one, so they are told."""
        self._open().refuse(text)
        return Error(text)

    def close(self) -> None:
        """Gives the symmetric memory up. Collective over the group."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.free()

    def __enter__(self) -> "ContextParallel":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # A rank that fails cannot wait for the others, which may be elsewhere.
        if kind is None:
            self.close()

    # Attention.

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = True,
        window: Optional[tuple[Optional[int], Optional[int]]] = None,
        cu_seqlens: Any = None,
        cu_seqlens_kv: Any = None,
        bands: Optional[Iterable[Band]] = None,
        scale: Optional[float] = None,
        layout: str = "bshd",
        deterministic: Optional[bool] = None,
        return_lse: bool = False,
        cu_seqlens_padded: Any = None,
        cu_seqlens_kv_padded: Any = None,
        sequence: Optional[Sequence] = None,
        kv_sequence: Optional[Sequence] = None,
        tokens: Optional[int] = None,
        kv_tokens: Optional[int] = None,
    ) -> Any:
        """Attention of this rank's queries over all ranks' keys and values. Collective over the group.

        Args:
            q: this rank's queries, [batch, rows, query heads, head_dim] or as `layout` says, with any strides.
            k: its keys, [batch, rows, kv heads, head_dim]; the query heads are a multiple of the kv heads.
            v: its values, [batch, rows, kv heads, value_dim].
            causal: queries see keys up to their own token (bottom-right aligned where there are more keys).
            window: (left, right), the keys before and after a query's own that it sees; None or -1 is no bound.
            cu_seqlens: bounds of packed documents in the whole sequence, [documents + 1], or a list of them for each
                batch row. Queries see their own document only. `cu_seqlens_kv`: those of the keys, where other.
            cu_seqlens_padded: where each document begins in the sequence, where each is followed by padding.
            bands: the whole mask, as `Band`s in global positions, in place of causal, window and cu_seqlens.
            scale: of the scores; None is head_dim ** -0.5.
            layout: of q, k, v and the output: "bshd", "bhsd", "sbhd", or "thd" without a batch.
            deterministic: the same bits each time; None follows torch.use_deterministic_algorithms. On a CPU they
                always are.
            return_lse: whether (out, lse) is returned; lse, the natural log of the sum of exponentials, is
                [batch, query heads, rows] in float32, [query heads, rows] for thd, and has no gradient.
            sequence: what `shard_batch` found, in place of cu_seqlens; `kv_sequence` likewise.
            tokens: tokens of all ranks, where the sequence goes beyond cu_seqlens. Where nothing says how many there are,
                they are those of what `shard` and `shard_batch` have cut last; where those were of several lengths, or
                nothing was cut, the ranks ask each other, which `tokens` spares them. `kv_tokens` likewise: it is
                needed where there are other keys than queries.

        Returns:
            this rank's rows of the output, [batch, rows, query heads, value_dim] as `layout` says, in q's dtype.

        Rows are those of `local_indices`: what `shard` gives. Tensors must not be written by other threads during the
        call. Padding gets zeros and passes none on.
        """
        del deterministic  # On a CPU every reduction follows the plan's order, asked or not.
        self._open()
        _call.check_layout(layout, q=q, k=k, v=v)
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tensor.device.type != self.device.type:
                raise Error(f"{name} is on {tensor.device} and this ContextParallel on {self.device}: move it there")
        if torch.compiler.is_compiling():
            given = (cu_seqlens, cu_seqlens_padded, sequence, tokens), (
                cu_seqlens_kv,
                cu_seqlens_kv_padded,
                kv_sequence,
                kv_tokens,
            )
            out, lse = self._compiled(q, k, v, layout, layout, *given, causal, window, bands, scale)
            return (out, lse) if return_lse else out
        shapes = [_call.as_bshd(x, layout).shape for x in (q, k)]
        queries = sequence or given_sequence("cu_seqlens", cu_seqlens, cu_seqlens_padded, tokens)
        keys = kv_sequence or given_sequence("cu_seqlens_kv", cu_seqlens_kv, cu_seqlens_kv_padded, kv_tokens)
        if queries is None:
            queries, keys = self._sizes(shapes[0][1], shapes[1][1], keys)
        out, lse = self._attend(q, k, v, layout, layout, queries, keys, causal, window, bands, scale)
        return (out, lse) if return_lse else out

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layout: str,
        out_layout: str,
        queries: Sequence,
        keys: Optional[Sequence],
        causal: bool,
        window: Any,
        bands: Optional[Iterable[Band]],
        scale: Optional[float],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) of a call whose tensors have been looked at."""
        engine = self._open()
        attention = self._checked(queries, keys, causal, window, bands, scale)
        if self._is_alone:
            return _alone.attention(q, k, v, attention, layout, out_layout)
        return _call.run(engine, attention, q, k, v, layout, out_layout)

    def _compiled(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layout: str,
        out_layout: str,
        queries: tuple[Any, Any, Optional[Sequence], Optional[int]],
        keys: tuple[Any, Any, Optional[Sequence], Optional[int]],
        causal: bool,
        window: Any,
        bands: Optional[Iterable[Band]],
        scale: Optional[float],
        position_ids: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `_attend`, while a graph is traced."""
        if self._is_alone:
            raise Error("verify and alone() work on functions that are not compiled: give them the original")
        described = []
        for cu_seqlens, padded, sequence, tokens in (queries, keys):
            if padded is not None:
                raise Error("cu_seqlens_padded in a compiled function is not supported: give sequence=")
            if sequence is not None:
                if sequence.cut is not None:
                    raise Error("a sequence with `cut` in a compiled function is not supported")
                described.append((_compiled.of_sequence(sequence), sequence.tokens))
            else:
                described.append((_compiled.documents_of(cu_seqlens), tokens))
        (documents, tokens), (kv_documents, kv_tokens) = described
        sides = None if window is None else [-1 if side is None else side for side in window]
        return _compiled.attention(
            q,
            k,
            v,
            self._number,
            causal,
            sides,
            _compiled.flat(bands),
            documents,
            kv_documents,
            position_ids,
            tokens,
            kv_tokens,
            scale,
            layout,
            out_layout,
        )

    # Plans and memory.

    def plan(
        self,
        tokens: Optional[int] = None,
        *,
        q_heads: int,
        kv_heads: Optional[int] = None,
        head_dim: int,
        value_dim: Optional[int] = None,
        dtype: torch.dtype = torch.bfloat16,
        batch: int = 1,
        kv_tokens: Optional[int] = None,
        causal: bool = True,
        window: Any = None,
        cu_seqlens: Any = None,
        bands: Optional[Iterable[Band]] = None,
        sequence: Optional[Sequence] = None,
    ) -> Plan:
        """Who fetches which rows when in a call of these sizes, and the memory that it takes. Not collective.

        Print it; its attributes are `stages`, `rows_fetched` (of each rank), `ring_rows` (what a ring would move),
        `heap` (bytes that `heap=` must be at least), `symmetric_bytes` and `total_bytes`.
        """
        queries = _shards.needed(sequence, tokens, cu_seqlens)
        keys = None if kv_tokens is None else Sequence(kv_tokens)
        return Plan(
            self._describe(queries, keys, causal, window, bands, None),
            pes=self.size,
            batch=batch,
            q_heads=q_heads,
            kv_heads=q_heads if kv_heads is None else kv_heads,
            head_dim=head_dim,
            value_dim=head_dim if value_dim is None else value_dim,
            dtype=str(dtype).removeprefix("torch."),
            layout=self.sharding,
            threads=self._threads,
            stages=self._stages,
            memory=self._memory,
        )

    def reserve(self, tokens: int, **sizes: Any) -> int:
        """Makes the heap take calls of these sizes (those of `plan`) beside what it took before; prints and returns its
        bytes. Collective over the group; queued work ends first."""
        publish, contribution = self.plan(tokens, **sizes).slots
        # Documents and batches of the same sizes differ by some rows.
        self._slots = (max(self._slots[0], publish), max(self._slots[1], contribution))
        engine = self._open()
        self._engine = None
        engine.free()
        self._engine = self._new_engine()
        held = self._engine.heap_bytes
        if self.rank == 0:
            print(f"longreach: {held} bytes of symmetric memory on each of {self.size} ranks")
        return held
