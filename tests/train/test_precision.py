"""The precision of a run, where its recipe asks for one that a CPU does not have."""

import pytest
from training_runs import losses, run_here, same, weights

from trueshift.train import trainer as loop
from trueshift.utils.provenance import has_bf16


def test_bf16_is_float32_on_a_cpu_without_it(tmp_path, monkeypatch):
    for folder, precision, able in (("plain", "float32", True), ("without", "bf16", False), ("with", "bf16", True)):
        monkeypatch.setattr(loop, "has_bf16", lambda able=able: able)
        assert run_here(tmp_path / folder, precision=precision, max_steps=2) == 0
    assert losses(tmp_path / "without") == losses(tmp_path / "plain") != losses(tmp_path / "with")
    assert same(weights(tmp_path / "without"), weights(tmp_path / "plain"))


@pytest.mark.parametrize(
    ("flags", "able"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 sse", True),
        ("flags\t\t: fpu amx_bf16", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx2 avx512f", False),
    ],
)
def test_what_linux_says_of_a_cpu(tmp_path, flags, able):
    file = tmp_path / "cpuinfo"
    assert not has_bf16(file)  # another system
    file.write_text(f"processor\t: 0\n{flags}\n")
    assert has_bf16(file) is able
