"""What is supported, and what is installed."""

from __future__ import annotations

import platform
import sys
from typing import NamedTuple

import torch

from . import _longreach
from ._longreach import Error, support_table

__all__ = ["Support", "show_versions", "support_table", "supports"]

#: What of the engine this module does not reach yet, by feature of the support table.
_HERE = {
    "device": ("cpu", "move tensors to the CPU; the `longreach` program runs on GPUs"),
    "transport": ("processes: ranks of one machine (Linux)", "make a process group of each machine's ranks"),
    "dtype": ("float32, float16, bfloat16; accumulated in float32, results in the type of q", "convert fp8 and float64"),
}


class Support(NamedTuple):
    """A row of the support table: whether it works at all, what of it works, and what to use instead of the rest."""

    supported: bool
    works: str
    instead: str


def supports(feature: str) -> Support:
    """What of `feature` works from Python: `longreach.supports("dropout").supported` is False.

    Features are the first column of `longreach.support_table()`.
    """
    if feature.lower() in _HERE:
        return Support(True, *_HERE[feature.lower()])
    row = _longreach.supports(feature)
    if row is None:
        rows = [line.split("|")[1].strip() for line in support_table().splitlines()[2:]]
        raise Error(f"the support table has no feature {feature!r}: it has {', '.join(rows)}")
    return Support(*row)


def show_versions() -> None:
    """Prints the versions that a report of a problem needs."""
    import importlib.metadata as metadata

    def installed(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    rows = {
        "longreach": _longreach.version(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torch threads": str(torch.get_num_threads()),
        "torch CUDA": f"{torch.version.cuda or 'none'} (longreach's Python package runs on CPU tensors today)",
        "transformers": installed("transformers"),
    }
    for name, value in rows.items():
        print(f"{name:14} {value}")
