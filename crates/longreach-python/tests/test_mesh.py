"""Sub-groups, meshes, and several groups in one process."""

import os

import pytest
from launch import HERE, torchrun

EXAMPLE = os.path.join(HERE, "..", "..", "..", "examples", "mesh.py")
FULL = os.environ.get("LONGREACH_FULL") == "1"


def test_two_by_two():
    run = torchrun(4, os.path.join(HERE, "mesh.py"))
    assert run.returncode == 0 and run.stdout.count("done\n") == 4, run.stdout


@pytest.mark.parametrize("ranks", [4, 8] if FULL else [4])
def test_the_example_of_three_kinds_of_parallelism(ranks):
    run = torchrun(ranks, EXAMPLE, "--cp", "2", "--tp", "2")
    assert run.returncode == 0 and "gradients as of one process" in run.stdout, run.stdout
