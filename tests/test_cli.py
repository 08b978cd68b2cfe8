import json
import os

import pytest

from trueshift.cli import main
from trueshift.commands import command_line


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)


QUICK = ["--limit", "3", "--shifts", "2", "--examples", "1", "--plane", "3", "--batch-size", "16"]


def test_an_audit_beside_its_twin(tmp_path, capsys):
    assert main(["audit", "swin_mini", "--against", "adapted", "--random-weights", *QUICK, "--output", "out"]) == 0
    told = capsys.readouterr().out
    assert "random weights" in told
    assert "C-Cons." in told
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert [model["name"] for model in found["models"]] == ["swin_mini", "swin_mini, adapted"]
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_an_audit_beside_another_model_of_another_size(tmp_path):
    assert main(["audit", "resnet10t", "--against", "swin_mini", "--random-weights", *QUICK]) == 0
    found = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert [model["preparation"]["size"] for model in found["models"]] == [[176, 176], [32, 32]]


def test_an_evaluation(tmp_path, capsys):
    command = ["eval", "swin_mini", "--data", "sample", "--protocols", "flips", "magnitude-8", "--random-weights"]
    assert main([*command, "--limit", "4"]) == 0
    assert "upside down" in capsys.readouterr().out
    measured = json.loads((tmp_path / "eval" / "eval.json").read_text())["measured"]
    assert list(measured) == ["circular", "flipped", "magnitude-8"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["audit", "swin_mini"], "--random-weights"),
        (["audit", "no_such_model"], "no model is called"),
        (["audit", "swin_mini", "--random-weights", "--data", "nowhere"], "there is no data at nowhere"),
        (["audit", "swin_mini", "--random-weights", "--shifts", "1"], "needs at least 2"),
        (["audit", "swin_mini", "--random-weights", "--protocols", "cifr"], "did you mean 'cifar'"),
        (["audit", "swin_mini", "--random-weights", "--device", "cuda:7"], "no CUDA device"),
        (["audit", "resnet10t", "--random-weights", "--against", "adapted"], "--against canonical"),
        (["eval", "swin_mini", "--data", "sample", "--protocols", "ade20k", "--random-weights"], "segmentation"),
    ],
)
def test_what_a_user_can_put_right_is_told_in_a_line(arguments, told, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert error.startswith("trueshift: ")


def test_an_output_that_is_a_file_or_closed_is_refused_before_any_work(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert main(["audit", "swin_mini", "--random-weights", "--output", "taken"]) == 2
    assert "taken is a file" in capsys.readouterr().err
    if os.geteuid():  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        assert main(["audit", "swin_mini", "--random-weights", "--output", "closed/in"]) == 2


def test_a_full_disk_leaves_the_last_report(tmp_path, monkeypatch, capsys):
    command = ["audit", "swin_mini", "--random-weights", *QUICK]
    assert main(command) == 0
    before = (tmp_path / "audit" / "audit.json").read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main([*command, "--seed", "1"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert (tmp_path / "audit" / "audit.json").read_bytes() == before
    assert not list((tmp_path / "audit").glob(".*"))


def test_functions_become_commands(capsys):
    def paint(picture: str, *, colours: list[str], times: int = 3, wet: bool = False, tone: str | None = None) -> str:
        """Paint a picture.

        Args:
            picture: what to paint,
                at full length.
            colours: some.
            times: 100 % of them.
            wet: or dry.
            tone: if any.
        """
        return f"{picture} {colours} {times} {wet} {tone}"

    parser = command_line("p", "about", {"paint": paint})
    given = parser.parse_args(["paint", "cat", "--colours", "red", "blue", "--wet"])
    assert given.run(given) == "cat ['red', 'blue'] 3 True None"
    with pytest.raises(SystemExit):
        parser.parse_args(["paint", "cat"])
    assert "--colours" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parser.parse_args(["paint", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "what to paint, at full length" in shown
    assert "100 % of them. (default: 3)" in shown
