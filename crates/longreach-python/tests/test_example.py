"""The example with a real model: logits, loss and all gradients beside those of one process."""

import os

import pytest
from launch import HERE, torchrun

EXAMPLE = os.path.join(HERE, "..", "..", "..", "examples", "train_long_context.py")
ALL = ["zigzag", "contiguous", "documents", "padded"]
FULL = os.environ.get("LONGREACH_FULL") == "1"


@pytest.mark.parametrize("ranks,cases", [(2, ALL), (3, ALL if FULL else ["documents", "padded"])])
def test_a_training_step_of_a_real_model(ranks, cases):
    run = torchrun(ranks, EXAMPLE, "--tokens", "1999", "--check", "--cases", *cases, seconds=1500)
    assert run.returncode == 0, run.stdout
    # Four numbers a case, all within their bounds.
    assert run.stdout.count("(within 1e-") == 4 * len(cases), run.stdout
    assert "changes no bit of document 2's logits" in run.stdout


def test_without_the_check():
    run = torchrun(2, EXAMPLE, "--tokens", "257", "--random-weights", "--layers", "2", "--cases", "zigzag", "padded")
    assert run.returncode == 0 and run.stdout.count("s a step") == 2, run.stdout
