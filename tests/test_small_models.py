"""Training and measuring the small models for the tables: what is kept, what is passed over, what is written of it."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.accuracy import cifar, measure, store
from benchmarks.accuracy.runs import Run, keep_weights, matching, needed_by, write_result
from benchmarks.common import processes, record
from trueshift.eval import EvalOptions, load_eval_model
from trueshift.models import from_pretrained
from trueshift.train import parse_arguments, train

ROOT = Path(__file__).resolve().parents[1]
# a run of a second on the images that come with the package
TRIAL = {
    "data.kind": "any",
    "data.holdout": "0.1",
    "data.limit": "32",
    "data.workers": "1",
    "batch_size": "16",
    "schedule.epochs": "1",
    "schedule.warmup_epochs": "0",
    "evaluate.limit": "12",
    "evaluate.batch_size": "12",
    "precision": "float32",
}
TINY = "{embed_dim: 16, depths: [1, 1], num_heads: [1, 2]}"


def words_of(options):
    return [word for key, value in options.items() for word in (f"--{key}", value)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of A-Swin-mini, much smaller, that is done."""
    run, more = Run("cifar10_small/a_swin_mini", 3, tmp_path_factory.mktemp("work")), words_of(TRIAL)
    more += ["--model.arguments", TINY, "--device", "cpu"]
    assert train(parse_arguments([*run.options("sample"), *more]).config, Console(quiet=True)) == 0
    return run


def test_recipes_by_patterns():
    assert matching(["a_*v*_mini"]) == [f"cifar10_small/a_{name}_mini" for name in ("cvt", "mvitv2", "swinv2")]
    assert not any("shipped" in recipe for recipe in matching(["*"]))
    assert matching(["cifar10_small/swin_mini", "swin*"])[0] == "cifar10_small/swin_mini"
    with pytest.raises(SystemExit, match="no recipe fits swim"):
        matching(["swim"])


SWITCHED_OFF = ["no_a_token", "no_a_wsa", "no_a_pmerge"]


def test_what_a_run_needs_and_what_is_asked_of_it():
    taught = {"model.start_from": "cvt_mini", "distill.teacher": "cvt_mini_longest"}
    taught = {key: f"cifar10_small/shipped/{name}" for key, name in taught.items()}
    assert needed_by("cifar10_small/shipped/a_cvt_mini_distilled") == taught
    assert needed_by("cifar10/a_swin_tiny_circular") == {}
    adaptive, ordinary = (
        set(measure.parts_of(f"cifar10_small/{name}")) for name in ("a_swin_mini", "swin_mini_circular")
    )
    assert adaptive >= {"exactness_float32", *SWITCHED_OFF}
    assert "adapted" in ordinary
    assert "exactness_float32" not in ordinary
    assert "grids_4" in measure.parts_of("cifar10_small/a_swin_mini_random_grids")
    assert "itself" in measure.parts_of("cifar10_small/shipped/vit_mini")
    assert measure.parts_of("cifar10_small/a_swin_mini", ["magnitude", "adapted"]) == ["magnitude"]


@torch.no_grad()
def test_one_module_switched_off_and_a_mean_over_grids():
    """The same weights, which no longer stand still under every shift; the mean does."""
    subject, images = load_eval_model("a_swin_mini", EvalOptions()), torch.randn(2, 3, 32, 32)
    moved = images.roll((5, 3), (2, 3))
    assert torch.equal(subject.forward(images), subject.forward(moved))
    for part in SWITCHED_OFF:
        twin = measure.made(measure.PARTS[part], subject, EvalOptions())
        assert (twin.preparation, twin.classes) == (subject.preparation, subject.classes)
        assert not torch.equal(twin.forward(images), twin.forward(moved)), part
        assert all(map(torch.equal, twin.module.parameters(), subject.module.parameters()))
    mean = measure.made(measure.PARTS["grids_2"], subject, EvalOptions())
    assert torch.equal(mean.forward(images), mean.forward(moved))
    assert not torch.equal(mean.forward(images), subject.forward(images))


def test_what_is_kept_of_a_run(finished, tmp_path):
    """Its result, which names no folder of the machine, and small weights, which build the same network."""
    result = finished.result(["--seed", "3"])
    kept = result["result"]
    assert (kept["recipe"], kept["model"], result["seed"]) == ("cifar10_small/a_swin_mini", "a_swin_mini", 3)
    assert kept["evaluation"].keys() == {"circular", "cifar-standard"}
    assert kept["evaluation"]["circular"]["bit_exact"]["rate"] == 1
    assert [epoch for epoch, _ in kept["curve"]["top1"]] == [epoch for epoch, _ in kept["curve"]["loss"]] == [1]
    assert str(finished.work) not in json.dumps(result)
    with pytest.raises(ValueError, match=r"a\.json would name /secret"):
        write_result(tmp_path / "a.json", {"data": "/secret/place"}, ["/secret"])
    assert not list(tmp_path.iterdir())
    final = finished.folder / "final"
    file = keep_weights(final, tmp_path / "kept" / f"{finished.name}.safetensors")
    assert file.stat().st_size < 0.7 * (final / "model.safetensors").stat().st_size
    again = Run(finished.recipe, finished.seed, tmp_path / "elsewhere", tmp_path / "kept")
    folder, precision = again.weights()
    model = from_pretrained(folder)
    assert precision == "float16"
    assert all(value.dtype == torch.float32 for value in model.parameters())
    assert Run(finished.recipe, 4, tmp_path / "elsewhere", tmp_path / "kept").weights() is None


def test_finished_weights_are_measured_part_by_part(finished, tmp_path, capsys, monkeypatch):
    words = ["--data", "sample", "--runs", finished.recipe, "--seeds", "3", "--jobs", "1", "--work", str(finished.work)]
    words += ["--measure-only", "--device", "cpu", "--limit", "6", "--batch", "24", "--results", str(tmp_path)]

    def call(*parts):
        monkeypatch.setattr(sys, "argv", ["cifar.py", *words, "--parts", *parts])
        assert cifar.main() == 0
        return {entry["part"]: entry for entry in store.about(finished.recipe, tmp_path)["measured"]}

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    first = call("exactness_float32")
    assert first["exactness_float32"]["weights"] == "float32"
    for metric in ("bit_exact", "worst_case"):
        assert store.numbers(finished.recipe, "exactness_float32", "circular", metric, "cpu") == {3: 1.0}
    both = call("exactness_float32", "magnitude")
    assert list(both) == ["exactness_float32", "magnitude"]
    assert both["exactness_float32"] == first["exactness_float32"]
    assert capsys.readouterr().out.count("exactness_float32") == 1  # not measured again
    given = type("Given", (), {"results": tmp_path, "limit": 0})
    assert not cifar._parts_there(given, finished, "cpu")  # a trial does not stand for all images


@pytest.fixture
def call_cifar(monkeypatch, tmp_path):
    """``cifar.py`` on the images that come with the package."""

    def call(*words):
        common = ["--data", "sample", "--work", str(tmp_path), "--results", str(tmp_path), "--runs"]
        monkeypatch.setattr(sys, "argv", ["cifar.py", *common, *words])
        return cifar.main()

    return call


def test_what_is_finished_is_skipped(finished, call_cifar, tmp_path, capsys):
    result = finished.result([])
    result["result"]["recipe"] = "cifar10_small/swin_mini"
    store.take_in([{**result, "seed": 0}], tmp_path)
    assert call_cifar("swin_mini") == 0
    assert "swin_mini_seed0: finished before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["swin_mini", "--evaluate.every_epoch", "2"],
            "--evaluate.every_epoch 2: did you mean --evaluate.every_epochs",
        ),
        (["swin_mini", "--seed", "1"], "--seed: every run has its own"),
        (["swin_mini", "--measure-only", "--optimizer.lr", "0.1"], "--optimizer.lr 0.1: for trainings"),
        (["cvt_mini_adapted_10_epochs"], "needs --runs cifar10_small/cvt_mini_circular beside it"),
    ],
)
def test_options_are_checked_before_any_training_begins(call_cifar, words, reason):
    with pytest.raises(SystemExit, match=re.escape(reason)):
        call_cifar(*words)


def test_options_of_trainings_are_given_as_trueshift_train_takes_them(call_cifar, monkeypatch):
    found = {}
    monkeypatch.setattr(cifar, "run_jobs", lambda jobs, *_: found.update(jobs) or 0)
    words = ["--compile", "--optimizer.arguments", "{fused: true}", "--jobs", "1", "--log.tensorboard=false"]
    assert call_cifar("swin_mini", *words) == 0
    config = parse_arguments(found["swin_mini_seed0"][4:]).config
    assert (config.compile, config.optimizer.arguments, config.log.tensorboard) == (True, {"fused": True}, False)


def test_a_result_taken_in_twice_is_there_once_and_another_seed_beside_it(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    result = finished.result([])
    other = json.loads(json.dumps({**result, "seed": 4}))
    other["result"]["config"]["batch_size"] = 8
    store.take_in([result])
    once = (tmp_path / "cifar10_small.csv").read_text()
    store.take_in([result])
    assert (tmp_path / "cifar10_small.csv").read_text() == once
    store.take_in([other])
    assert list(store.numbers("a_swin_mini", "final", "circular", "top1")) == [3, 4]
    assert [len(curve) for curve in store.curves("a_swin_mini", "loss")] == [1, 1]
    first, second = store.about("a_swin_mini")["trained"]
    assert "config" not in first
    assert second["config"]["batch_size"] == 8


@pytest.fixture
def run_codes(tmp_path):
    """Run Python code in place of trainings."""

    def run(codes, at_once, limit_s=0, finished=lambda name: None, **after):
        jobs = {name: [sys.executable, "-S", "-c", code] for name, code in codes.items()}
        return processes.run_jobs(jobs, tmp_path, at_once, limit_s, finished, after)

    return run


def test_jobs_run_few_at_a_time_and_only_good_ones_are_finished(run_codes, tmp_path, capsys):
    """Each after those that it needs, and not at all if these fail."""
    order, done = tmp_path / "order", []

    def finished(name):
        done.append(name)
        if name == "b":
            raise ValueError("no room")

    note = f"import time; f = open({str(order)!r}, 'a'); f.write('+'); f.flush(); time.sleep(0.1); f.write('-')"
    codes = {"c": note, "e": note, "a": note, "b": note, "d": "raise SystemExit(3)"}
    assert run_codes(codes, at_once=1, finished=finished, c={"a"}, e={"c", "d"}) == 75
    assert order.read_text() == "+-+-+-"
    assert done == ["a", "b", "c"]
    shown = capsys.readouterr().out
    for part in ("b: done, but ValueError: no room", "d: exit code 3, see ", "e: not begun, since", "2 of 5 done"):
        assert part in shown


def test_when_time_is_over_all_are_stopped_and_nothing_is_finished(run_codes, capsys):
    saves = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); time.sleep(60)"
    done = []
    assert run_codes({"a": saves, "b": saves, "c": "pass"}, at_once=2, limit_s=0.5, finished=done.append)
    assert not done
    shown = capsys.readouterr().out
    assert shown.count("exit code 75") == 2
    assert "c: not begun" in shown
