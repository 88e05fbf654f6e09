"""The compiled module; `longreach` is what to use."""

from typing import Any, Optional

from typing_extensions import CapsuleType

_Rows = Any
_Band = tuple[int, int, tuple[str, int], tuple[str, int]]

class Error(RuntimeError): ...

class PeerFailed(Error):
    kind: str
    rank: int
    operation: str
    stage: int
    epoch: int
    waited_seconds: float

class HeapTooSmall(Error):
    heap: int

class Attention:
    def __init__(
        self,
        q_len: int,
        kv_len: int,
        *,
        causal: bool,
        window: Optional[tuple[Optional[int], Optional[int]]] = None,
        documents: Optional[_Rows] = None,
        kv_documents: Optional[_Rows] = None,
        bands: Optional[list[_Band]] = None,
        cuts: Optional[tuple[Any, Any]] = None,
        scale: Optional[float] = None,
    ) -> None: ...
    def indices(self, pe: int, pes: int, batch: int, layout: str) -> bytes: ...
    def positions(self, pe: int, pes: int, batch: int, layout: str) -> bytes: ...
    def lengths(self, pes: int, batch: int, layout: str) -> list[int]: ...
    def scale(self, head_dim: int) -> float: ...
    def bands(self, batch: int) -> list[list[_Band]]: ...

class Plan:
    slots: tuple[int, int]
    heap: int
    total_bytes: int
    symmetric_bytes: int
    stages: int
    rows_fetched: list[int]
    ring_rows: int
    def __init__(
        self,
        attention: Attention,
        *,
        pes: int,
        batch: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int,
        dtype: str,
        layout: str,
        threads: int,
        stages: Optional[int] = None,
        memory: Optional[int] = None,
    ) -> None: ...

class World:
    @staticmethod
    def join(job: str, token: str, pe: int, pes: int, deadline: float) -> "World": ...
    def team(self, ranks: Optional[list[int]] = None) -> "Team": ...
    def check(self) -> None: ...
    def failed(self) -> bool: ...
    def fail(self, reason: str) -> None: ...
    def leave(self) -> None: ...

class Team:
    rank: int
    size: int
    ranks: list[int]
    def barrier(self) -> None: ...

class Buffer:
    address: int
    def __init__(self, team: Team, bytes: int) -> None: ...

class Signal:
    def __init__(self, team: Team) -> None: ...
    def value(self) -> int: ...
    def set(self, rank: int, value: int) -> None: ...
    def wait(self, value: int, seconds: float) -> bool: ...

class Handle:
    def wait(self) -> None: ...

class Transfers:
    def __init__(self) -> None: ...
    def get(self, buffer: Buffer, rank: int, offset: int, address: int, bytes: int, owner: Any) -> Handle: ...
    def put(
        self,
        buffer: Buffer,
        rank: int,
        offset: int,
        address: int,
        bytes: int,
        owner: Any,
        signal: Optional[tuple[Signal, int]] = None,
    ) -> Handle: ...
    def fence(self) -> Handle: ...

class Saved: ...

class Engine:
    heap_bytes: int
    def __init__(
        self,
        team: Team,
        *,
        layout: str,
        publish: int,
        contribution: int,
        threads: int,
        stages: Optional[int] = None,
        memory: Optional[int] = None,
    ) -> None: ...
    def forward(
        self,
        attention: Attention,
        q: CapsuleType,
        k: CapsuleType,
        v: CapsuleType,
        out: CapsuleType,
        lse: CapsuleType,
        keep: bool,
    ) -> Optional[Saved]: ...
    def backward(
        self,
        saved: Optional[Saved],
        dout: CapsuleType,
        dq: Optional[CapsuleType] = None,
        dk: Optional[CapsuleType] = None,
        dv: Optional[CapsuleType] = None,
    ) -> None: ...
    def refuse(self, reason: str) -> None: ...
    def quiesce(self) -> None: ...
    def free(self) -> None: ...

def slots_of(heap: int) -> tuple[int, int]: ...
def supports(feature: str) -> Optional[tuple[bool, str, str]]: ...
def support_table() -> str: ...
def version() -> str: ...
