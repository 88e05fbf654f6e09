"""Every rank of a torchrun job runs these tests, all in the same order."""

import pytest
import torch
import torch.distributed as dist

import longreach


def pytest_configure(config):
    dist.init_process_group("gloo")


def pytest_unconfigure(config):
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1234)


@pytest.fixture(scope="session")
def engines():
    """A ContextParallel of each sharding."""
    # Left open: programs need not close them.
    names = ("zigzag", "contiguous", "striped")
    return {name: longreach.ContextParallel(heap="32MiB", sharding=name, timeout=60) for name in names}


@pytest.fixture
def cp(engines):
    engines["zigzag"]._sequences.clear()
    return engines["zigzag"]
