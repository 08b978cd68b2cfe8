"""The precision of a run, where a CPU does not have what its recipe asks for; and deterministic algorithms."""

import os

import pytest
import torch
from training_runs import learn, losses, run_here, same, weights

from trueshift.train import trainer as loop
from trueshift.utils.provenance import has_bf16
from trueshift.utils.rng import WORKSPACE


def test_bf16_is_float32_on_a_cpu_without_it(tmp_path, monkeypatch):
    runs = []
    for precision, able in (("float32", True), ("bf16", False), ("bf16", True)):
        monkeypatch.setattr(loop, "has_bf16", lambda able=able: able)
        runs.append(learn(tmp_path / str(len(runs)), precision=precision, max_steps=2))
    plain, without, rounded = map(losses, runs)
    assert without == plain != rounded
    assert same(*map(weights, runs[:2]))


@pytest.mark.parametrize(
    ("flags", "able"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 sse", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx2 avx512f", False),
    ],
)
def test_what_linux_says_of_a_cpu(tmp_path, flags, able):
    file = tmp_path / "cpuinfo"
    assert not has_bf16(file)  # another system
    file.write_text(f"processor\t: 0\n{flags}\n")
    assert has_bf16(file) is able


@pytest.mark.parametrize(
    ("asked", "before", "now"), [("true", None, ":4096:8"), ("true", ":16:8", ":16:8"), ("false", None, None)]
)
def test_cublas_is_reported_before_a_gpu_is_used(tmp_path, monkeypatch, asked, before, now):
    seen = []

    def joined_processes(device):  # the first thing of a run that may use a GPU
        seen.append((os.environ.get(WORKSPACE), torch.are_deterministic_algorithms_enabled()))
        raise InterruptedError

    monkeypatch.setattr(loop, "joined_processes", joined_processes)
    monkeypatch.setenv(WORKSPACE, before) if before else monkeypatch.delenv(WORKSPACE, raising=False)
    with pytest.raises(InterruptedError):
        run_here(tmp_path, deterministic=asked)
    assert seen == [(now, asked == "true")]
    assert not torch.are_deterministic_algorithms_enabled()
