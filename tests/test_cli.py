"""The commands: what they write and print, which mistakes they name, and how functions become commands."""

import io
import json
import os
import sys
from dataclasses import replace

import pytest
import torch

import trueshift
from trueshift.cli import main
from trueshift.commands import command_line, respelled
from trueshift.data.arrays import SAMPLE_FOLDER
from trueshift.eval.options import AuditOptions, EvalOptions, inference_device
from trueshift.train import parse_arguments
from trueshift.utils.files import writable_folder
from trueshift.utils.locks import sole_writer


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)


QUICK = ["--limit", "3", "--shifts", "2", "--examples", "1", "--plane", "3", "--batch-size", "16"]
BRIEF = [*QUICK, "--examples", "0", "--protocols", "circular"]


def test_an_audit_beside_its_twin(tmp_path, capsys):
    assert main(["audit", "swin_mini", "--against", "adapted", "--random-weights", *QUICK, "--output", "out"]) == 0
    message = capsys.readouterr().out
    assert "random weights" in message
    assert "C-Cons." in message
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert [model["name"] for model in found["models"]] == ["swin_mini", "swin_mini, adapted"]
    assert found["data"]["title"] == "400 CIFAR-10 test images"
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_an_audit_beside_another_model_of_another_size(tmp_path):
    assert main(["audit", "resnet10t", "--against", "swin_mini", "--random-weights", *BRIEF]) == 0
    found = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert [model["preparation"]["size"] for model in found["models"]] == [[176, 176], [32, 32]]
    assert found["data"]["title"] == "6 photographs"  # the first model's are no thumbnails


def test_training_without_its_extra_names_it(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "trueshift.train.cli")
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    assert main(["train", "--config", "cifar10/a_swin_tiny_circular"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'trueshift[train]'" in line


OURS = "audit swin_mini --random-weights"
TAKEN = "eval swin_mini --random-weights --data sample --protocols circular"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("audit resnet10t", "--random-weights"),
        ("audit resnet10t --random-weights --against adapted", "--against canonical"),
        (f"{OURS} --data nowhere", "there is no data at nowhere"),
        (f"{OURS} --output taken", "taken is a file"),
        (f"{OURS} --shifts 1", "1 shifts: needs at least 2"),
        (f"{OURS} --plane -1", "plane is -1: needs at least 0"),
        (f"{OURS} --device cuda:7", "no CUDA device"),
        (f"{OURS} --device mps", "device 'mps': needs cpu, cuda, cuda:1 or auto"),
        (f"{OURS} --img-size 0", "img_size is 0: needs at least 1"),
        (f"{OURS} --img_size=-5", "img_size is -5: needs at least 1"),
        (f"{OURS} --mean nan 0 0", "needs three values each"),
        (f"{TAKEN} --device cuda:-1", "device 'cuda:-1': needs cpu"),
        (f"{TAKEN} --seed -1", "seed is -1: needs at least 0"),
        (f"{TAKEN} --seed {10**30}", "needs less than 2**63"),
        (f"{TAKEN} --batch_size -3", "batch_size is -3: needs at least 1"),
        (f"{TAKEN} --limit -1", "limit is -1: needs at least 0"),
        (f"{TAKEN} --workers -1", "workers is -1: needs at least 0"),
        (f"{TAKEN} --precision float8", "needs one of float32, bf16"),
        (f"{TAKEN} --split bogus", "split 'bogus': needs one of train, "),
        ("segment . --model any --device tpu", "needs cpu, cuda"),
        ("train", "train needs a recipe, e.g. --config cifar10/a_swin_tiny_circular: `trueshift recipes`"),
        ("train --dry-run", "train needs a recipe, e.g. --config"),
        ("train --config nothing", "there is no recipe nothing"),
        ("train --device tpu", "device 'tpu': needs cpu, cuda"),
        ("train --data.img-size -5", "data.img_size is -5: needs at least 1"),
        ("train --data.train_split bogus --data.holdout 0.2", "split 'bogus': needs one of train, "),
    ],
)
def test_what_a_user_can_put_right_is_reported_in_a_line(tmp_path, words, message, capsys):
    (tmp_path / "taken").write_text("")
    assert main(words.split()) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]  # above it the names of processes and warnings of timm's
    assert error.startswith("trueshift: ")
    assert message in error


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert inference_device("cuda:1") == "cuda:1"
    with pytest.raises(ValueError, match="device 'cuda:2': there are 2 CUDA devices here; needs cuda:0 to cuda:1"):
        inference_device("cuda:2")


@pytest.mark.parametrize("command", [["audit", *QUICK], ["eval", "--protocols", "circular"]], ids=lambda each: each[0])
def test_images_of_which_none_can_be_read_are_no_result(command, tmp_path, capsys):
    (tmp_path / "broken").mkdir()
    for name in ("a.png", "b.jpg"):
        (tmp_path / "broken" / name).write_bytes(b"no picture")
    name, *options = command
    assert main([name, "swin_mini", "--data", "broken", "--random-weights", "--output", "out", *options]) == 2
    error = capsys.readouterr().err
    assert "none of the 2 images of broken could be measured, e.g. a.png (UnidentifiedImageError" in error
    assert not (tmp_path / "out" / f"{name}.json").exists()


def interrupted_after(records):
    """Ctrl-C after so many answers."""
    left = iter([None] * records)

    def asked(record):
        for problem in left:
            return problem
        raise KeyboardInterrupt

    return asked


@pytest.mark.parametrize("words", [["audit", *BRIEF], ["eval", "--data=sample", "--protocols=circular", "--limit=3"]])
def test_an_interrupt_before_the_first_image_keeps_an_earlier_result(words, tmp_path, capsys, monkeypatch):
    command = [*words[:1], "swin_mini", "--random-weights", *words[1:], "--output", "out"]
    assert main(command) == 0

    def files():
        return {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}

    earlier = files()

    monkeypatch.setattr("trueshift.eval.audit.run.problem_of", interrupted_after(0))
    monkeypatch.setattr("trueshift.eval.runner.evaluate.problem_of", interrupted_after(0))
    capsys.readouterr()
    assert main(command) == 130
    assert "nterrupted" in "".join(capsys.readouterr())
    assert files() == earlier


def test_an_interrupt_leaves_a_valid_partial_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trueshift.eval.audit.run.problem_of", interrupted_after(2))
    words = ["--against", "torch.nn:Flatten", "--img-size", "32", *QUICK]
    assert main(["audit", "swin_mini", "--random-weights", *words]) == 130
    message = " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert found["partial"]
    assert (found["data"]["images"], found["data"]["asked"]) == (1, 3)
    assert "Interrupted: 1 of 3 images were measured" in message
    assert "Interrupted: 1 of 3" in (tmp_path / "audit" / "report.html").read_text()
    assert "Flatten does not say how to prepare its images" in message


@pytest.mark.parametrize("command", [["audit"], ["eval", "--data", "sample", "--protocols", "circular"]])
def test_a_folder_that_another_command_writes_to_is_refused(command, tmp_path, capsys):
    name, *options = command
    with sole_writer(writable_folder(tmp_path / "out")):
        assert main([name, "swin_mini", *options, "--random-weights", "--output", "out"]) == 2
    assert "out is being written to by process" in capsys.readouterr().err
    assert not os.listdir(tmp_path / "out")


def test_names_that_are_no_text_and_screens_without_letters(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    for name in (b"\xdcbung.png", b"\xdcbel.png"):
        path = tmp_path / "old" / os.fsdecode(name)
        path.write_bytes((SAMPLE_FOLDER / "cifar10_test_400.png").read_bytes() if b"bung" in name else b"no picture")
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", screen)
    assert main(["audit", "swin_mini", "--random-weights", "--data", "old", *BRIEF]) == 0
    screen.flush()
    assert rb"\udcdcbel.png" in screen.buffer.getvalue()
    assert r"\udcdcbung.png" in (tmp_path / "audit" / "images.csv").read_text()


def test_too_little_memory_is_reported_in_a_line(monkeypatch, capsys):
    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nMore.")

    monkeypatch.setattr("trueshift.eval.run_audit", full)
    assert main(["audit", "swin_mini", "--random-weights"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error == "trueshift: CUDA out of memory. Tried to allocate 20 GiB.: needs a smaller batch size"


def paint(
    image: str = "cat",
    *,
    colours: list[str],
    times: int = 3,
    wet: bool = False,
    tone: str | None = None,
    options: EvalOptions = AuditOptions(seed=7),  # noqa: B008
) -> str:
    """Paint an image.

    Args:
        image: what to paint,
            at full length.
        colours: some.
        times: 100 % of them.
        wet: or dry.
        tone: if any.
    """
    assert options == replace(AuditOptions(seed=7), plane=options.plane, mean=options.mean)
    return f"{image} {colours} {times} {wet} {tone} {options.plane} {options.mean}"


def test_functions_become_commands(capsys):
    parser = command_line("p", "about", {"paint": paint})
    for words, painted in (
        ("dog --colours red blue --wet", "dog ['red', 'blue'] 3 True None 16 None"),
        ("--colours red --times 5 --plane 8", "cat ['red'] 5 False None 8 None"),
        ("dog --times 5 --colours red --tone low --mean 0 0.5 1", "dog ['red'] 5 False low 16 (0.0, 0.5, 1.0)"),
    ):
        given = parser.parse_args(["paint", *words.split()])
        assert given.run(given) == painted
    for words, message in (
        (["cat"], "--colours"),
        (["dog", "cow", "--colours", "red"], "cow"),
        (["--help"], "what to paint, at full length. (default: cat)"),
        (["--help"], "100 % of them. (default: 3)"),
        (["--help"], "images at most, evenly spread over the data; 0 for all. (default: 64)"),
        (["--help"], "shifts along each side of that plane, one pixel apart. (default: 16)"),  # a field of its own
        (["--help"], "of the shifts, and of random weights. (default: 7)"),
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(["paint", *words])
        assert message in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize(
    "words",
    [
        [],
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


def test_names_of_options_have_dashes_or_underscores_and_values_stay():
    words = ["--a_b.c_d", "--e-f=g_h-i", "j_k", "-l_m", "--", "--n"]
    assert respelled(words, "_", "-") == ["--a-b.c-d", "--e-f=g_h-i", "j_k", "-l_m", "--", "--n"]
    assert respelled(words, "-", "_") == ["--a_b.c_d", "--e_f=g_h-i", "j_k", "-l_m", "--", "--n"]
    either = parse_arguments(["--ema-decay=0.9", "--data.on-device", "no", "--output", "a-b_c", "--dry_run"])
    assert either == parse_arguments(["--ema_decay", "0.9", "--data.on_device=no", "--output", "a-b_c", "--dry-run"])


def test_recipes_are_listed_and_shown_without_what_training_needs(monkeypatch, capsys):
    monkeypatch.setattr("trueshift.cli._training", lambda module: pytest.fail("needs trueshift[train]"))
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
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.split() == ["trueshift", trueshift.__version__]
