"""Sub-groups, meshes, and several groups in one process."""

import os

from launch import HERE, torchrun


def test_two_by_two():
    run = torchrun(4, os.path.join(HERE, "mesh.py"))
    assert run.returncode == 0 and run.stdout.count("done\n") == 4, run.stdout
