"""The tests in `ranks`, on two and three ranks at once: pytest runs in each of them."""

import os

import pytest
from launch import HERE, torchrun

FILES = sorted(name for name in os.listdir(os.path.join(HERE, "ranks")) if name.startswith("test_"))


@pytest.mark.parametrize("ranks", [2, 3])
def test_on(ranks):
    files = [os.path.join("ranks", name) for name in FILES]
    run = torchrun(ranks, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files)
    assert run.returncode == 0, run.stdout
    assert run.stdout.count(" passed") == ranks, run.stdout
