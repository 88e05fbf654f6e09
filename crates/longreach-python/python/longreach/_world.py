"""The world of a process group: one for each group of this process, found through the group itself."""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import sys
import weakref
from typing import Any

import torch.distributed as dist

from ._group import gather
from ._longreach import Engine, Error, PeerFailed, Team, World, version

#: Seconds without progress of a rank after which the others give it up, where nothing else is said.
TIMEOUT = 600.0

_worlds: "weakref.WeakKeyDictionary[dist.ProcessGroup, World]" = weakref.WeakKeyDictionary()
_members: "weakref.WeakSet[World]" = weakref.WeakSet()
_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


def default_timeout() -> float:
    """What LONGREACH_DEADLINE says, in seconds, or 600."""
    given = os.environ.get("LONGREACH_DEADLINE")
    if not given:
        return TIMEOUT
    try:
        return float(given)
    except ValueError:
        raise Error(f"LONGREACH_DEADLINE is `{given}`: it must be seconds above 0") from None


def meet(group: dist.ProcessGroup, options: dict[str, Any], timeout: float) -> tuple[World, Team]:
    """The group's world and a new team of it. Collective over the group, all of which give the same options."""
    kept = _worlds.get(group)
    mine = {
        "host": _host(),
        "version": version(),
        "options": options,
        "kept": kept is not None and not kept.failed(),
        # Rank 0's counts. The token keeps other processes of this user out.
        "job": f"torch-{secrets.token_hex(8)}",
        "token": secrets.token_hex(16),
    }
    given = gather(group, mine)
    _agree(given)
    if kept is None or not all(rank["kept"] for rank in given):
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        kept = World.join(given[0]["job"], given[0]["token"], rank, size, timeout)
        _remember(group, kept)
    return kept, kept.team()


def watch(engine: Engine) -> None:
    """Has `engine` end its work before this process ends."""
    _engines.add(engine)


def _host() -> str:
    # Containers may share a name, and a machine's ranks may be in several containers: the boot tells machines apart.
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{socket.gethostname()} ({file.read().strip()[:8]})"
    except OSError:
        return socket.gethostname()


def _agree(given: list[dict[str, Any]]) -> None:
    first = given[0]
    for rank, other in enumerate(given):
        if other["version"] != first["version"]:
            raise Error(
                f"rank 0 has longreach {first['version']} and rank {rank} {other['version']}: install one version"
            )
        if other["host"] != first["host"]:
            raise Error(
                f"rank 0 is on {first['host']} and rank {rank} on {other['host']}: today all ranks of a group must be"
                " on one machine; make a group of each machine's ranks"
            )
        for name, value in first["options"].items():
            if other["options"][name] != value:
                raise Error(
                    f"{name} differs between ranks: rank 0 gave {value!r}, rank {rank} gave"
                    f" {other['options'][name]!r}; all must give the same"
                )


def _remember(group: dist.ProcessGroup, world: World) -> None:
    if not _members:
        _listen()
    _worlds[group] = world
    _members.add(world)


_listening = False


def _listen() -> None:
    global _listening
    if _listening:
        return
    _listening = True
    atexit.register(_leave)
    before = sys.excepthook

    def fail(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        # The others learn at once, and why, rather than when they next miss this rank.
        if not issubclass(kind, PeerFailed):
            for world in list(_members):
                world.fail(f"{kind.__name__}: {error}".splitlines()[0])
        before(kind, error, trace)

    sys.excepthook = fail


def _leave() -> None:
    for engine in list(_engines):
        engine.quiesce()
    for world in list(_members):
        world.leave()
