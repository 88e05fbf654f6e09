"""Symmetric memory and one-sided transfers, for people who know OpenSHMEM or NVSHMEM's Python bindings.

    from longreach import shmem

    shmem.init()                                   # collective over the process group
    x = shmem.tensor((4, 1024), torch.float32)     # collective: as many bytes on each PE, zeroed
    ready = shmem.signal()                         # collective: a word on each PE, 0
    x.fill_(shmem.my_pe())
    shmem.signal_set(ready, 1, pe=right)           # data written before the signal is there for who has waited for it
    shmem.signal_wait(ready, 1, deadline=10)
    y = torch.empty(1024)
    shmem.get(y, x[2], pe=left).on()               # any view that lies side by side names its own bytes
    shmem.finalize()                               # collective

PEs are the ranks of the group, today processes of one machine with CPU tensors; `stream` arguments are for GPUs and must
be None. Creating, allocating, freeing and barriers are collective, and nothing else is: nothing collective happens when
objects are collected. Only signals order transfers with what other PEs do: who reads what another PE may be writing gets
old bytes, new ones, or some of both.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.distributed as dist

from . import _group, _longreach, _world
from ._longreach import Error

__all__ = [
    "Handle",
    "Signal",
    "Team",
    "barrier",
    "finalize",
    "free_tensor",
    "get",
    "init",
    "my_pe",
    "n_pes",
    "put",
    "put_signal",
    "quiet",
    "signal",
    "signal_set",
    "signal_value",
    "signal_wait",
    "tensor",
]


class Team:
    """The PEs in `ranks`, in that order. Collective over them, all of which name the same."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._inner = _job().world.team(list(ranks))

    @property
    def ranks(self) -> list[int]:
        """The PEs, in the team's order."""
        return self._inner.ranks

    def __repr__(self) -> str:
        return f"Team({self.ranks})"


@dataclass
class _Allocation:
    buffer: _longreach.Buffer
    bytes: int
    team: _longreach.Team


@dataclass
class _Job:
    group: dist.ProcessGroup
    world: _longreach.World
    team: _longreach.Team
    transfers: _longreach.Transfers
    count: int = 1
    #: By the address at which they begin.
    allocations: dict[int, _Allocation] = field(default_factory=dict)


_current: Optional[_Job] = None


def _job() -> _Job:
    if _current is None:
        raise Error("shmem is not initialised: call longreach.shmem.init() on all ranks first")
    return _current


def init(group: Any = None, *, timeout: Optional[float] = None) -> None:
    """Begins the use of symmetric memory by the ranks of a process group. Collective over the group.

    Counted: a second call for the same group returns at once, and as many `finalize` calls end it. Another group is
    an error until then. `timeout` is as for `ContextParallel`.
    """
    global _current
    group = _group.resolve(group)
    if _current is not None:
        if _current.group is not group:
            raise Error(
                f"shmem is initialised for a group of {_current.team.size} ranks and was asked for again with another"
                f" one of {dist.get_world_size(group)}: call finalize first"
            )
        _current.count += 1
        return
    timeout = _world.default_timeout() if timeout is None else float(timeout)
    world, team = _world.meet(group, {"timeout": timeout}, timeout)
    _current = _Job(group, world, team, _longreach.Transfers())


def finalize() -> None:
    """Ends it, with the last of as many calls as `init`. Collective over the group.

    Tensors that were not freed keep their bytes, and take part in no transfer any more.
    """
    global _current
    job = _job()
    job.count -= 1
    if job.count > 0:
        return
    job.transfers.fence().wait()
    job.team.barrier()
    _current = None


def my_pe() -> int:
    """This rank's number in the group."""
    return _job().team.rank


def n_pes() -> int:
    """Ranks of the group."""
    return _job().team.size


def tensor(shape: Iterable[int], dtype: torch.dtype = torch.float32, team: Optional[Team] = None) -> torch.Tensor:
    """A tensor in symmetric memory, zeroed; collective over the team, whose PEs give the same number of bytes.

    It is an ordinary tensor of this PE's bytes; as the `src` of `get` and the `dst` of `put`, it and its views name the
    same bytes of another PE.
    """
    job = _job()
    of = job.team if team is None else team._inner
    shape = tuple(shape)
    bytes_ = math.prod(shape) * dtype.itemsize
    buffer = _longreach.Buffer(of, bytes_)
    if bytes_ == 0:
        return torch.empty(shape, dtype=dtype)
    memory = (ctypes.c_char * bytes_).from_address(buffer.address)
    # The tensor keeps the array, and that the memory.
    memory.owner = buffer
    job.allocations[buffer.address] = _Allocation(buffer, bytes_, of)
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)


def free_tensor(tensor: torch.Tensor) -> None:
    """Gives a symmetric tensor up. Collective over its team: afterwards no PE reads or writes it from afar."""
    job = _job()
    if tensor.numel() == 0:
        return
    allocation, offset = _found("tensor", tensor)
    if offset != 0:
        raise Error("tensor is a view of a symmetric tensor: free the whole one")
    job.transfers.fence().wait()
    allocation.team.barrier()
    del job.allocations[allocation.buffer.address]


def _found(name: str, tensor: torch.Tensor) -> tuple[_Allocation, int]:
    """The allocation that a tensor lies in, and where in it."""
    address = tensor.data_ptr()
    for start, allocation in _job().allocations.items():
        if start <= address and address + tensor.nbytes <= start + allocation.bytes:
            return allocation, address - start
    raise Error(f"{name} is not in symmetric memory, or was freed: make it with longreach.shmem.tensor")


class Handle:
    """A transfer on its way; `on` tells when it has come."""

    def __init__(self, inner: Optional[_longreach.Handle], tensor: torch.Tensor) -> None:
        self._inner, self._tensor = inner, tensor

    def on(self, stream: Any = None) -> torch.Tensor:
        """Orders `stream` behind the transfer, and gives the tensor that it is about back. On a CPU it waits."""
        _no_stream(stream)
        if self._inner is not None:
            self._inner.wait()
        return self._tensor


def _no_stream(stream: Any) -> None:
    if stream is not None:
        raise Error(f"stream is {stream!r}: today shmem works on CPU tensors only, which have no streams; leave it out")


def _side_by_side(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise Error(f"{name} is on {tensor.device}: today shmem works on CPU tensors only")
    if not tensor.is_contiguous():
        raise Error(
            f"{name} has shape {list(tensor.shape)} and strides {list(tensor.stride())}: its elements must lie side by side"
        )


def _ends(dst: torch.Tensor, src: torch.Tensor, afar: str, pe: int) -> Optional[tuple[_Allocation, int, int]]:
    """Allocation, offset and team rank of the symmetric end; none where there is nothing to transfer."""
    for name, end in (("dst", dst), ("src", src)):
        _side_by_side(name, end)
    if dst.dtype != src.dtype or dst.numel() != src.numel():
        raise Error(
            f"dst is {list(dst.shape)} of {dst.dtype} and src {list(src.shape)} of {src.dtype}: both must have as many"
            " elements of one type"
        )
    if not 0 <= pe < n_pes():
        raise Error(f"pe is {pe}: there are PEs 0..{n_pes()}")
    if dst.numel() == 0:
        return None
    allocation, offset = _found(afar, dst if afar == "dst" else src)
    ranks = allocation.team.ranks
    if pe not in ranks:
        raise Error(f"pe is {pe}: {afar} is of the team {ranks}")
    return allocation, offset, ranks.index(pe)


def get(dst: torch.Tensor, src: torch.Tensor, pe: int, stream: Any = None) -> Handle:
    """Queues a copy of PE `pe`'s bytes of the symmetric tensor `src` into `dst`, which is readable after
    `handle.on(stream)`."""
    _no_stream(stream)
    ends = _ends(dst, src, "src", pe)
    if ends is None:
        return Handle(None, dst)
    allocation, offset, rank = ends
    inner = _job().transfers.get(allocation.buffer, rank, offset, dst.data_ptr(), dst.nbytes, dst)
    return Handle(inner, dst)


def put(dst: torch.Tensor, src: torch.Tensor, pe: int, stream: Any = None) -> Handle:
    """Queues a copy of `src` into PE `pe`'s bytes of the symmetric tensor `dst`. `src` must stay as it is until then."""
    return _put(dst, src, pe, stream, None)


def put_signal(
    dst: torch.Tensor, src: torch.Tensor, signal: "Signal", value: int, pe: int, stream: Any = None
) -> Handle:
    """As `put`, and behind it raises PE `pe`'s word of `signal` to `value`: who waits for that finds the bytes there."""
    return _put(dst, src, pe, stream, (signal, value))


def _put(
    dst: torch.Tensor, src: torch.Tensor, pe: int, stream: Any, signal: Optional[tuple["Signal", int]]
) -> Handle:
    _no_stream(stream)
    ends = _ends(dst, src, "dst", pe)
    if ends is None:
        if signal is not None:
            signal_set(*signal, pe)
        return Handle(None, src)
    allocation, offset, rank = ends
    with_signal = None
    if signal is not None:
        if signal[0].ranks != allocation.team.ranks:
            raise Error(f"the signal is of the team {signal[0].ranks} and dst of {allocation.team.ranks}: give one of its")
        with_signal = (signal[0]._inner, signal[1])
    transfers = _job().transfers
    inner = transfers.put(allocation.buffer, rank, offset, src.data_ptr(), src.nbytes, src, with_signal)
    return Handle(inner, src)


class Signal:
    """A word on each PE of a team, 0 at first; it only grows."""

    def __init__(self, team: Optional[Team] = None) -> None:
        of = _job().team if team is None else team._inner
        self._inner, self.ranks = _longreach.Signal(of), of.ranks


def signal(team: Optional[Team] = None) -> Signal:
    """A new signal. Collective over the team."""
    return Signal(team)


def signal_set(signal: Signal, value: int, pe: int) -> None:
    """Raises PE `pe`'s word to `value`, at once, behind what this PE has put before. A word that holds more keeps it."""
    if pe not in signal.ranks:
        raise Error(f"pe is {pe}: the signal is of the team {signal.ranks}")
    _job().transfers.fence().wait()
    signal._inner.set(signal.ranks.index(pe), value)


def signal_value(signal: Signal) -> int:
    """This PE's word."""
    return signal._inner.value()


def signal_wait(signal: Signal, value: int, deadline: float = _world.TIMEOUT) -> None:
    """Waits until this PE's word has come to `value`; an error after `deadline` seconds, and at once where a PE dies."""
    if not signal._inner.wait(value, float(deadline)):
        raise Error(
            f"the signal is {signal._inner.value()} after {deadline} s and was to come to {value}: look at the PE that"
            " raises it"
        )


def barrier(team: Optional[Team] = None, stream: Any = None) -> None:
    """Returns when all PEs of the team have called it and what they put is there. Collective over the team."""
    _no_stream(stream)
    quiet()
    (_job().team if team is None else team._inner).barrier()


def quiet(stream: Any = None) -> None:
    """Returns when all that this PE has got and put is where it belongs."""
    _no_stream(stream)
    _job().transfers.fence().wait()
