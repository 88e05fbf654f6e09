"""Programs under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def torchrun(ranks: int, *program: str, seconds: float = 300, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Runs `program` on so many ranks of this machine; what they print comes back as one text."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    # Each rank one thread, and no other job's deadline.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
    return subprocess.run(
        [*launcher, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        cwd=HERE,
        env=environment,
    )
