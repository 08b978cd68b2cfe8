"""Training and measuring the small models for the tables: what is kept, what is passed over, what is written of it."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from paper_tables import PAPER, caption_of, rows_of
from rich.console import Console

from trueshift.eval import EvalOptions, load_eval_model
from trueshift.models import from_pretrained
from trueshift.train import parse_arguments, train

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
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
    "device": "cpu",
}
TINY = "{embed_dim: 16, depths: [1, 1], num_heads: [1, 2]}"


def trial_words():
    return [word for key, value in TRIAL.items() for word in (f"--{key}", value)]


@pytest.fixture(scope="module")
def tools():
    """The benchmarks' own modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield _modules()


def _modules():
    import job_queue
    import small_measure
    import small_models
    import small_results
    import small_runs
    import small_tables
    import small_weights

    modules = (job_queue, small_measure, small_models, small_results, small_runs, small_tables, small_weights)
    return type("Tools", (), {module.__name__: module for module in modules})


@pytest.fixture(scope="module")
def finished(tools, tmp_path_factory):
    """A run of A-Swin-mini, much smaller, that is done."""
    run, more = tools.small_runs.Run("cifar10_small/a_swin_mini", 3, tmp_path_factory.mktemp("work")), trial_words()
    more += ["--model.arguments", TINY]
    assert train(parse_arguments(run.command("sample", more)).config, Console(quiet=True)) == 0
    return run


# runs


def test_recipes_by_patterns(tools):
    matching = tools.small_runs.matching
    small = [f"cifar10_small/{name}" for name in ("a_cvt_mini", "a_mvitv2_mini", "a_swinv2_mini")]
    assert matching(["a_*v*_mini"]) == small
    assert len(matching(["*"])) + len(matching(["shipped/*"])) == 30
    assert matching(["cifar10_small/swin_mini", "swin*"])[0] == "cifar10_small/swin_mini"
    assert matching(["cifar10/*swin_tiny_circular"]) == [f"cifar10/{a}swin_tiny_circular" for a in ("a_", "")]
    with pytest.raises(SystemExit, match="no recipe fits swim"):
        matching(["swim"])


def test_what_a_run_needs_and_what_is_asked_of_it(tools):
    needed_by, parts_of = tools.small_runs.needed_by, tools.small_measure.parts_of
    assert needed_by("cifar10_small/cvt_mini_adapted_10_epochs") == "cifar10_small/cvt_mini_circular"
    assert needed_by("cifar10/cvt_13_adapted_10_epochs") == "cifar10/cvt_13_circular"
    assert needed_by("cifar10_small/a_cvt_mini") is None

    def parts(name, asked):
        return parts_of(f"cifar10_small/{name}", asked)

    exact = ["exactness_float32", "exactness_bf16"]
    switched_off = ["no_a_token", "no_a_wsa", "no_a_pmerge"]
    assert parts("a_swin_mini", None) == [*exact, "magnitude", "distorted", *switched_off]
    assert parts("shipped/a_swin_mini", None) == [*exact, *switched_off]
    assert parts("shipped/a_cvt_mini", None) == exact
    assert parts("cvt_mini_circular", None) == ["magnitude", "canonical", "adapted"]
    assert parts("swin_mini_da_circular", None) == ["distorted"]
    assert parts("a_swinv2_mini_200_epochs", None) == parts("cvt_mini_adapted_10_epochs", None) == exact
    assert parts("cvt_mini_standard", None) == parts("a_swin_mini_no_anchor", None) == []
    assert parts("a_swin_mini", ["magnitude", "adapted"]) == ["magnitude"]
    assert parts_of("cifar10/a_swin_tiny_circular", None) == [*exact, "magnitude"]


@pytest.mark.parametrize("part", ["no_a_token", "no_a_wsa", "no_a_pmerge"])
def test_one_module_switched_off(tools, part):
    """The same weights, which no longer stand still under every shift."""
    subject = load_eval_model("a_swin_mini", EvalOptions())
    twin = tools.small_measure.PARTS[part].twin(subject, EvalOptions())
    assert (twin.preparation, twin.classes) == (subject.preparation, subject.classes)
    images = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        for each, still in ((subject, True), (twin, False)):
            moved = each.forward(images.roll((5, 3), (2, 3)))
            assert torch.equal(each.forward(images), moved) is still
    weights = [value for each in (subject, twin) for value in each.module.parameters()]
    half = len(weights) // 2
    assert all(map(torch.equal, weights[:half], weights[half:]))


def test_the_result_of_a_run_is_all_that_is_worth_keeping(tools, finished):
    result = finished.result(["--seed", "3"])
    assert {"command", "commit", "date", "machine", "versions", "seed", "result"} == result.keys()
    kept = result["result"]
    assert (kept["recipe"], kept["model"], result["seed"]) == ("cifar10_small/a_swin_mini", "a_swin_mini", 3)
    assert kept["evaluation"].keys() == {"circular", "cifar-standard"}
    assert kept["evaluation"]["circular"]["bit_exact"]["rate"] == 1
    assert [epoch for epoch, _ in kept["curve"]["top1"]] == [epoch for epoch, _ in kept["curve"]["loss"]] == [1]
    assert str(finished.work) not in json.dumps(result)
    assert "epoch 1" in finished.told()


def test_a_result_that_names_a_folder_of_the_machine_is_refused(tools, tmp_path):
    with pytest.raises(ValueError, match=r"a\.json would name /secret"):
        tools.small_runs.write_result(tmp_path / "a.json", {"data": "/secret/place"}, ["/secret"])
    assert not list(tmp_path.iterdir())


def test_kept_weights_are_small_and_build_the_same_network(tools, finished, tmp_path):
    final = finished.folder / "final"
    file = tools.small_weights.keep_weights(final, tmp_path / "kept" / f"{finished.name}.safetensors", recipe="x")
    assert file.stat().st_size < 0.7 * (final / "model.safetensors").stat().st_size
    again = tools.small_runs.Run(finished.recipe, finished.seed, tmp_path / "elsewhere", tmp_path / "kept")
    folder, precision = again.weights()
    model = from_pretrained(folder)
    assert precision == "float16"
    assert all(value.dtype == torch.float32 for value in model.parameters())
    image = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(image), model(torch.roll(image, (5, -3), (2, 3))))
    assert tools.small_runs.Run(finished.recipe, 4, tmp_path / "elsewhere", tmp_path / "kept").weights() is None


def test_finished_weights_are_measured_part_by_part(tools, finished, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["small_models.py", "--data", str(tmp_path)])  # not for a file that is published

    def measure(*parts):
        arguments = (finished, "sample", tmp_path, "cpu", list(parts), 6, 24, 1)
        return json.loads(tools.small_measure.measure_run(*arguments).read_text())["result"]

    first = measure("exactness_float32")
    assert list(first["parts"]) == ["exactness_float32"]
    exact = first["parts"]["exactness_float32"]
    assert exact["settings"]["shifts"] == 8
    assert (
        exact["measured"]["circular"]["bit_exact"]["rate"] == exact["measured"]["circular"]["worst_case"]["rate"] == 1
    )
    both = measure("exactness_float32", "magnitude")
    assert list(both["parts"]) == ["exactness_float32", "magnitude"]
    assert both["parts"]["exactness_float32"] == exact
    assert capsys.readouterr().out.count("exactness_float32") == 1  # not measured again
    assert exact["commit"]
    assert exact["weights"] == "float32"
    path = tools.small_measure.result_path(tmp_path, finished, "cpu")
    assert tools.small_measure.parts_there(path, 6) == both["parts"].keys()
    assert not tools.small_measure.parts_there(path, 0)  # a trial does not stand for all images
    assert str(tmp_path) not in json.dumps(both)


def test_what_is_finished_is_passed_over(tools, monkeypatch, tmp_path, capsys):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "swin_mini_seed0.json").write_text("{}")
    words = ["--data", "sample", "--runs", "swin_mini", "--work", str(tmp_path), "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", ["small_models.py", *words])
    assert tools.small_models.main() == 0
    assert "swin_mini_seed0: finished before" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["small_models.py", *words[:3], "cvt_mini_adapted_10_epochs", *words[4:]])
    with pytest.raises(SystemExit, match="needs --runs cifar10_small/cvt_mini_circular beside it"):
        tools.small_models.main()


# processes


def job(tools, tmp_path, name, code, after=None):
    return tools.job_queue.Job(name, [sys.executable, "-c", code], tmp_path / f"{name}.log", after)


def test_jobs_run_few_at_a_time_and_after_what_they_need(tools, tmp_path):
    order, done = tmp_path / "order", []
    note = (
        f"import time; f = open({str(order)!r}, 'a'); f.write('NAME+ '); f.flush(); time.sleep(0.3); f.write('NAME- ')"
    )
    needs = {"a": "b", "b": None, "c": "elsewhere"}
    jobs = [job(tools, tmp_path, name, note.replace("NAME", name), after) for name, after in needs.items()]
    queue = tools.job_queue.JobQueue(jobs, at_once=1)
    assert queue.run(lambda job: done.append(job.name)) == {"a": 0, "b": 0, "c": 0}
    assert order.read_text().split() == ["b+", "b-", "a+", "a-", "c+", "c-"]
    assert done == ["b", "a", "c"]


def test_what_needs_a_failed_job_is_left_out(tools, tmp_path, capsys):
    jobs = [job(tools, tmp_path, "a", "exit(3)"), job(tools, tmp_path, "b", "print(1)", after="a")]
    jobs.append(job(tools, tmp_path, "c", "print(1)", after="b"))
    assert tools.job_queue.JobQueue(jobs, at_once=2).run(lambda job: None) == {"a": 3}
    assert "b: left out, since a did not end well" in capsys.readouterr().out


def test_when_time_is_over_all_are_told_to_stop_and_nothing_is_finished(tools, tmp_path):
    saves = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); time.sleep(60)"
    jobs = [job(tools, tmp_path, name, code) for name, code in (("a", saves), ("b", saves), ("c", "print(1)"))]
    done, began = [], time.monotonic()
    ended = tools.job_queue.JobQueue(jobs, at_once=2, limit_s=1).run(lambda job: done.append(job.name))
    assert ended == {"a": 75, "b": 75}  # c was not begun
    assert not done
    assert time.monotonic() - began < 20


def test_a_result_that_cannot_be_kept_does_not_end_the_others(tools, tmp_path, capsys):
    def keep(job):
        if job.name == "a":
            raise ValueError("no room")

    jobs = [job(tools, tmp_path, name, "print(1)") for name in "ab"]
    assert tools.job_queue.JobQueue(jobs, at_once=1).run(keep) == {"a": 1, "b": 0}
    assert "a: done, but ValueError: no room" in capsys.readouterr().out


@pytest.mark.slow
def test_training_stopped_going_on_and_measuring_from_the_command_line(tmp_path):
    def call(*words, expected=0):
        places = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
        command = [sys.executable, BENCHMARKS / "small_models.py", "--data", "sample", "--jobs", "2", *places, *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout

    changes = {**TRIAL, "schedule.epochs": "3"}
    runs = ["--runs", "cvt_mini_circular", "cvt_mini_adapted_10_epochs", "--keep-weights", str(tmp_path / "kept")]
    words = [*runs, "--override", *(f"{key}={value}" for key, value in changes.items())]
    call("--limit-s", "1", *words, expected=75)
    assert not (tmp_path / "results").exists()
    assert "2 of 2 done" in call(*words)
    assert "finished before" in call(*words)
    names = ["cvt_mini_adapted_10_epochs_seed0", "cvt_mini_circular_seed0"]
    assert sorted(path.stem for path in (tmp_path / "results").iterdir()) == names
    assert sorted(path.stem for path in (tmp_path / "kept").iterdir()) == names
    shutil.rmtree(tmp_path / "work")  # as on a machine that was given back
    told = ["--runs", "cvt_mini*", "--weights", str(tmp_path / "kept"), "--limit", "6", "--batch", "12"]
    assert "cvt_mini_standard_seed0" not in call("--measure-only", "--device", "cpu", *told)
    measured = json.loads((tmp_path / "results" / "measured_cvt_mini_circular_seed0_cpu.json").read_text())["result"]
    assert measured["parts"]["magnitude"]["weights"] == "float16"
    assert list(measured["parts"]) == ["magnitude", "canonical", "adapted"]
    for part in ("canonical", "adapted"):
        assert measured["parts"][part]["measured"]["circular"]["bit_exact"]["rate"] == 1
    assert (tmp_path / "results" / "measured_cvt_mini_adapted_10_epochs_seed0_cpu.json").exists()


# tables


@pytest.fixture
def results(tools, monkeypatch, tmp_path):
    """A folder that holds nothing but the paper's numbers, and a way to put made-up results there."""
    shutil.copy(ROOT / "results" / "paper_results.json", tmp_path)
    monkeypatch.setattr(tools.small_results, "RESULTS", tmp_path)
    folder = tmp_path / "cifar10_small"
    folder.mkdir()
    about = {
        "commit": "0123456789abcdef",
        "machine": {"gpu": "a GPU", "processor": "a processor", "threads": 2},
        "versions": {"torch": "2"},
    }

    def rates(top1, consistency, exact=1.0):
        named = {"top1": top1, "consistency": consistency, "bit_exact": exact, "worst_case": consistency}
        return {key: {"rate": rate} for key, rate in named.items()}

    def save(recipe, seed, overrides=(), **evaluation):
        measured = {name.replace("_", "-"): rates(*numbers) for name, numbers in evaluation.items()}
        curve = {"top1": [[5, 0.5], [10, evaluation["circular"][0]]]}
        kept = {
            "recipe": recipe,
            "evaluation": measured,
            "seconds": 120.0,
            "curve": curve,
            "overrides": list(overrides),
        }
        place, name = (tmp_path / "cifar10", recipe[8:]) if recipe.startswith("cifar10/") else (folder, recipe)
        place.mkdir(exist_ok=True)
        file = place / f"{name.replace('/', '_')}_seed{seed}.json"
        file.write_text(json.dumps({**about, "seed": seed, "result": kept}))

    def save_measured(recipe, device, images=1000, shifts=2, seed=0, **parts):
        kept = {
            name: {
                "settings": {"shifts": shifts, "device": device},
                "images": images,
                "measured": {protocol: rates(*numbers) for protocol, numbers in part.items()},
            }
            for name, part in parts.items()
        }
        text = json.dumps({**about, "seed": seed, "result": {"parts": kept}})
        (folder / f"measured_{recipe.replace('/', '_')}_seed{seed}_{device}.json").write_text(text)

    return type("Results", (), {"save": staticmethod(save), "save_measured": staticmethod(save_measured)})


def test_tables_of_nothing_say_so_beside_the_papers_numbers(tools, results):
    for name, make in tools.small_tables.TABLES.items():
        assert "not run yet" in make(), name
    assert "| A-Swin-mini | not run yet | not run yet | not run yet | 0 | A-Swin-T | 93.39 ± 0.12 | 99.99 ± 0.01 |" in (
        tools.small_tables.circular()
    )


def test_seeds_are_averaged_and_counted(tools, results):
    results.save("a_swin_mini", 0, circular=(0.90, 1.0), cifar_standard=(0.90, 0.95))
    results.save("a_swin_mini", 1, circular=(0.92, 1.0), cifar_standard=(0.92, 0.97), overrides=["--compile", "true"])
    results.save("a_swin_mini_no_anchor", 0, circular=(0.9, 0.999, 0.4))
    table = tools.small_tables.circular()
    assert "| A-Swin-mini | 91.00 ± 1.41 | 100.00 ± 0.00 | 100.00 ± 0.00 | 2 | A-Swin-T |" in table
    assert "a GPU, torch 2, at commit 0123456789" in table
    assert "Run with `--compile true` beside the recipe." in table
    assert (
        "| A-Swin-mini | 91.00 ± 1.41 | 96.00 ± 1.41 | 2 | A-Swin-T | 93.50 ± 0.19 |" in tools.small_tables.standard()
    )
    assert "| without the anchor: the paper's modules alone | 90.00 | 99.90 | 40.00 | 1 | 93.39 ± 0.13 | 100.00 |" in (
        tools.small_tables.ablation()
    )
    assert "the paper's | 91.00 ± 1.41 | 100.00 ± 0.00 | 96.00 ± 1.41 | 2 |" in tools.small_tables.criterion()


def test_the_papers_networks_have_a_table_and_a_folder_of_their_own(tools, results):
    results.save("cifar10/a_swin_tiny_circular", 0, circular=(0.93, 1.0), cifar_standard=(0.93, 0.96))
    results.save("cifar10/cvt_13_standard", 0, circular=(0.1, 0.1), cifar_standard=(0.90, 0.85))
    table = tools.small_tables.paper_size()
    assert "| A-Swin-T | 93.00 | 100.00 | 100.00 | 96.00 | 1 | 93.39 ± 0.12 | 99.99 ± 0.01 | 96.00 ± 0.08 |" in table
    assert "| CvT-13 | not run yet | not run yet | not run yet | 85.00 | 0 |" in table
    assert "not run yet" in tools.small_tables.circular()


def test_networks_that_are_trained_twice_are_each_in_their_table(tools, results):
    results.save("cvt_mini_circular", 0, circular=(0.8, 0.7), cifar_standard=(0.8, 0.6))
    results.save("cvt_mini_standard", 0, circular=(0.5, 0.5), cifar_standard=(0.81, 0.75))
    assert "| CvT-mini | 80.00 | 70.00 |" in tools.small_tables.circular()
    assert "| CvT-mini | 81.00 | 75.00 | 1 |" in tools.small_tables.standard()


def test_what_was_measured_of_finished_weights(tools, results):
    results.save("cvt_mini_circular", 0, circular=(0.8, 0.7), cifar_standard=(0.8, 0.6))
    twins = {"circular": (0.79, 1.0), "cifar-standard": (0.79, 0.55)}
    magnitudes = {f"magnitude-{most}": (0.8, 0.9) for most in (8, 16, 24, 32)}
    results.save_measured("cvt_mini_circular", "cuda", canonical=twins, adapted=twins, magnitude=magnitudes)
    distorted = {f"erased-{side}": (0.7, 0.6) for side in (0, 28, 42, 56, 70)} | {
        "circular": (0.9, 0.8),
        "flipped": (0.5, 0.4),
    }
    results.save_measured("swin_mini", "cpu", distorted=distorted)
    assert "| CvT-mini, canonicalized | 79.00 | 100.00 | 55.00 | 1 |" in tools.small_tables.canonical()
    assert "| + Adapt, as it is | 79.00 | 100.00 | 1 | 57.40 | 100.00 |" in tools.small_tables.adapted()
    assert "| CvT-mini | 90.00 | 90.00 | 90.00 | 90.00 |" in tools.small_tables.magnitude()
    assert "| Swin-mini | 70.00 / 60.00 |" in tools.small_tables.erased()
    assert "| Swin-mini | 90.00 | 80.00 | 50.00 | 40.00 |" in tools.small_tables.flips()


def test_each_seed_counts_wherever_it_was_measured(tools, results):
    for seed, device, top1 in ((0, "cpu", 0.7), (1, "cpu", 0.1), (1, "cuda", 0.8), (2, "cuda", 0.9)):
        results.save_measured("swin_mini", device, seed=seed, adapted={"circular": (top1, 1.0)})
    assert "| Swin-mini, adapted as it is | 80.00 ± 10.00 | 100.00 ± 0.00 | not run yet | 3 |" in (
        tools.small_tables.canonical()
    )


def test_a_single_changed_answer_is_counted(tools, results):
    exact = {"exactness_float32": {"circular": (0.9, 1 - 1 / 10_000, 1 - 3 / 80_000)}}
    results.save_measured("a_cvt_mini", "cuda", images=10_000, shifts=8, **exact)
    results.save_measured("shipped/a_cvt_mini", "cpu", images=200, shifts=8, exactness_bf16={"circular": (0.9, 1.0)})
    rows = tools.small_tables.exactness().splitlines()[2:]
    assert rows == [
        "| `a_cvt_mini` | GPU | float32 | 10,000 | 80,000 | 1 | 3 |",
        "| `shipped/a_cvt_mini` | CPU | bf16 | 200 | 1,600 | 0 | 0 |",
    ]


def test_pictures_are_drawn_of_what_is_there_and_stay_the_same(tools, results, tmp_path):
    from small_plots import LEARNING, MAGNITUDE, draw_all

    draw_all(tmp_path / "images")
    assert not (tmp_path / "images").exists()
    results.save("a_swin_mini", 0, circular=(0.9, 1.0))
    draw_all(tmp_path / "images")
    first = (tmp_path / "images" / LEARNING).read_bytes()
    assert b"A-Swin-mini" in first
    assert len(first) < 100_000
    assert not (tmp_path / "images" / MAGNITUDE).exists()
    draw_all(tmp_path / "images")
    assert (tmp_path / "images" / LEARNING).read_bytes() == first
    assert f"images/{LEARNING}" in tools.small_tables.curves()


def test_pictures_in_the_document_are_there():
    text = (ROOT / "docs" / "results.md").read_text()
    for name in re.findall(r"\(images/([^)]+)\)", text):
        assert (ROOT / "docs" / "images" / name).exists(), name


@pytest.mark.skipif(not PAPER.is_file(), reason=f"needs the paper in {PAPER}")
def test_the_papers_numbers_are_those_of_its_tables():
    kept = json.loads((ROOT / "results" / "paper_results.json").read_text())["tables"]
    assert len(kept) == 8
    for table in kept.values():
        label = table["label"].removeprefix("tab:")
        assert table["rows"] == rows_of(label), label
        assert table["caption"] == caption_of(label)
        assert {len(row) for row in table["rows"].values()} == {len(table["columns"])}
