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
        (["audit", "resnet10t"], "--random-weights"),
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


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["-h", "--config", "a", "--config=b", "-1", "--x.y", "[1, 2]", "a b", ""],
        ["cat", "--help", "--", "-x", "--"],
    ],
)
def test_a_function_of_arguments_gets_all_words_as_they_are(words):
    def send(*arguments: str) -> list[str]:
        """Send words."""
        return list(arguments)

    parser = command_line("p", "about", {"other": lambda: None, "send": send})
    given = parser.parse_args(["send", *words])
    assert given.run(given) == words


def test_an_argument_with_a_default_may_be_left_out(capsys):
    def paint(picture: str = "cat", *, times: int = 3) -> str:
        """Paint a picture.

        Args:
            picture: what to paint.
            times: how often.
        """
        return f"{picture} {times}"

    parser = command_line("p", "about", {"paint": paint})
    for words, painted in (
        ([], "cat 3"),
        (["dog"], "dog 3"),
        (["--times", "5"], "cat 5"),
        (["dog", "--times", "5"], "dog 5"),
    ):
        given = parser.parse_args(["paint", *words])
        assert given.run(given) == painted
    with pytest.raises(SystemExit):
        parser.parse_args(["paint", "dog", "cow"])
    assert "cow" in capsys.readouterr().err


def test_recipes_are_listed_and_told(capsys):
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    assert "cifar10/a_swin_tiny_circular" in listed
    assert "A-Swin-T on CIFAR-10, circular shifts." in listed
    assert main(["recipes", "cifar100"]) == 0
    assert {line.split("/")[0] for line in capsys.readouterr().out.splitlines()} == {"cifar100"}
    assert main(["recipes", "cifar10/a_swin_tiny_circular"]) == 0
    assert "trueshift train --config cifar10/a_swin_tiny_circular" in capsys.readouterr().out
    assert main(["recipes", "cifar10/a_swin_tiny_circlar"]) == 2
    assert "did you mean cifar10/a_swin_tiny_circular" in capsys.readouterr().err


def test_a_configuration_is_shown_without_being_run(tmp_path, capsys):
    assert main(["train", "--config", "cifar10/a_swin_tiny_circular", "--seed", "7", "--print_config"]) == 0
    shown = capsys.readouterr().out
    assert "seed: 7" in shown
    assert "name: a_swin_tiny" in shown
    assert not list(tmp_path.iterdir())
    assert main(["train", "--config", "nothing"]) == 2
    assert "there is no recipe nothing" in capsys.readouterr().err
