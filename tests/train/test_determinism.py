"""Deterministic algorithms, while a run asks for them."""

import os
from contextlib import contextmanager

import pytest
import torch
from training_runs import run_here

from trueshift.train import trainer as loop
from trueshift.utils.rng import WORKSPACE


class Joining(Exception):
    """The first thing of a run that may use a GPU."""


@pytest.mark.parametrize(
    ("asked", "before", "now"), [("true", None, ":4096:8"), ("true", ":16:8", ":16:8"), ("false", None, None)]
)
def test_cublas_is_reported_before_a_gpu_is_used(tmp_path, monkeypatch, asked, before, now):
    seen = []

    def joined_processes(device):
        seen.append((os.environ.get(WORKSPACE), torch.are_deterministic_algorithms_enabled()))
        raise Joining
        yield

    monkeypatch.setattr(loop, "joined_processes", contextmanager(joined_processes))
    monkeypatch.setenv(WORKSPACE, before or "")
    if before is None:
        monkeypatch.delenv(WORKSPACE)
    with pytest.raises(Joining):
        run_here(tmp_path, deterministic=asked)
    assert seen == [(now, asked == "true")]
    assert not torch.are_deterministic_algorithms_enabled()
