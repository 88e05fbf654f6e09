"""Ranks that die, fail, are interrupted or go early: what the others are told, and that nobody hangs."""

import sys
import time

import pytest
from launch import torchrun

#: Each rank runs this; `act` is what rank 1 does, in place of its third call.
PROGRAM = r"""
import os, signal, sys, threading, time
import torch, torch.distributed as dist, longreach
dist.init_process_group("gloo")
cp = longreach.ContextParallel(heap="4MiB", timeout=20)
q = cp.shard(torch.randn(1, 64, 2, 8)).requires_grad_()
for _ in range(2):
    cp.attention(q, q, q).sum().backward()
dist.barrier()
started = time.monotonic()
if cp.rank == 1:
    {act}
try:
    cp.attention(q, q, q)
except longreach.PeerFailed as error:
    # One write each: ranks share the pipe.
    sys.stdout.write(f"rank {{cp.rank}} after {{time.monotonic() - started < 10}}: {{error.kind}} {{error.rank}}: {{error}}\n")
    sys.exit(7)
"""


def run(tmp_path, act, ranks=3):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(act=act))
    # torchrun ends all ranks when one fails: a shell in between hides that, so that the others have their say.
    hidden = f"{sys.executable} {program}; echo status $?"
    return torchrun(ranks, "--no-python", "sh", "-c", hidden, seconds=60).stdout


@pytest.mark.parametrize(
    "act,kind,words",
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "died", "PE 1 died during"),
        ("raise ValueError('no data left')", "failed", "ValueError: no data left"),
        ("sys.exit(0)", "left", "PE 1 left during"),
    ],
)
def test_a_rank_that_goes(tmp_path, act, kind, words):
    out = run(tmp_path, act)
    for rank in (0, 2):
        lines = [line for line in out.splitlines() if f"rank {rank} after True: {kind} 1: " in line]
        assert len(lines) == 1 and words in lines[0], out
    assert out.count("status 7") == 2, out


def test_an_interrupt_during_a_wait(tmp_path):
    # Rank 1 waits for the others, which come when it has been interrupted.
    act = r"""
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        cp.attention(q, q, q)
    except KeyboardInterrupt:
        sys.stdout.write(f"interrupted {time.monotonic() - started < 5}\n")
    sys.exit(0)
elif True:
    time.sleep(2.5)"""
    out = run(tmp_path, act.strip())
    assert "interrupted True" in out, out
    assert out.count("failed 1: PE 1 failed during") == 2 and "a signal interrupted" in out, out


def test_exit_without_close_leaves_nothing_waiting(tmp_path):
    # Rank 1 goes long before the others have used what it computed for them.
    program = tmp_path / "early.py"
    program.write_text(
        PROGRAM.split("dist.barrier()")[0].format()
        + "if cp.rank != 1:\n    time.sleep(2)\nsys.stdout.write(f'done {q.grad.isfinite().all().item()}\\n')\n"
    )
    started = time.monotonic()
    out = torchrun(3, str(program), seconds=60)
    assert out.returncode == 0 and out.stdout.count("done True") == 3, out.stdout
    assert time.monotonic() - started < 40


def test_symmetric_tensors_are_left_behind_without_harm(tmp_path):
    program = tmp_path / "left.py"
    program.write_text(
        "import sys, time, torch, torch.distributed as dist\n"
        "from longreach import shmem\n"
        "dist.init_process_group('gloo')\n"
        "shmem.init()\n"
        "x = shmem.tensor((1024,))\n"
        "x += shmem.my_pe()\n"
        "shmem.barrier()\n"
        "time.sleep(2 * shmem.my_pe())\n"
        "y = shmem.get(torch.empty(1024), x, 0).on()\n"
        "sys.stdout.write(f'got {y.sum().item()}\\n')\n"
    )
    started = time.monotonic()
    out = torchrun(2, str(program), seconds=60)
    # PE 0 has gone when PE 1 reads what it left.
    assert out.returncode == 0 and out.stdout.count("got 0.0") == 2, out.stdout
    assert time.monotonic() - started < 30
