"""The tables and plots of the small models: what they show of the recorded runs."""

import json
import shutil
from pathlib import Path

import pytest
from paper_tables import PAPER, caption_of, rows_of

from benchmarks.accuracy import plots, store
from benchmarks.common import record
from benchmarks.manifest import TABLES

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def results(monkeypatch, tmp_path):
    """A folder that holds nothing but the paper's numbers, and a way to put made-up results there."""
    shutil.copy(ROOT / "results" / "paper_results.json", tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    about = {
        "command": "",
        "commit": "0123456789abcdef",
        "date": "2026-01-01",
        "machine": {"gpu": "a GPU", "processor": "a processor", "threads": 2},
        "versions": {"torch": "2"},
    }

    def rates(top1, consistency, exact=1.0):
        named = {"top1": top1, "consistency": consistency, "bit_exact": exact, "worst_case": consistency}
        return {key: {"rate": rate, "images": 1000} for key, rate in named.items()}

    def save(recipe, seed, overrides=(), **evaluation):
        measured = {name.replace("_", "-"): rates(*numbers) for name, numbers in evaluation.items()}
        kept = {"recipe": recipe, "model": "", "config": {"model": {}}, "data": {}, "overrides": list(overrides)}
        kept |= {"evaluation": measured, "curve": {"top1": [[5, 0.5], [10, evaluation["circular"][0]]]}}
        kept |= {"seconds": 120.0, "steps": 1, "images_per_second": 1.0, "best_top1": 0.9}
        store.take_in([{**about, "seed": seed, "result": kept}])

    def save_measured(recipe, device, images=1000, shifts=2, seed=0, **parts):
        kept = {
            name: {
                "settings": {"shifts": shifts, "device": device},
                "images": images,
                "protocols": {},
                "weights": "float32",
                "measured": {protocol: rates(*numbers) for protocol, numbers in part.items()},
            }
            for name, part in parts.items()
        }
        store.take_in([{**about, "seed": seed, "result": {"recipe": recipe, "model": "", "parts": kept}}])

    return type("Results", (), {"save": staticmethod(save), "save_measured": staticmethod(save_measured)})


def rendered(name):
    return TABLES[f"small_{name}"].render()


def test_tables_of_nothing_say_so_beside_the_papers_numbers(results):
    for name, table in TABLES.items():
        if name.startswith(("small_", "paper_size")):
            assert "not run yet" in table.render(), name
    assert "| A-Swin-mini | not run yet | not run yet | not run yet | 0 | 93.39 ± 0.12 | 99.99 ± 0.01 |" in (
        rendered("circular")
    )


def test_seeds_are_averaged_and_counted(results):
    results.save("a_swin_mini", 0, circular=(0.90, 1.0), cifar_standard=(0.90, 0.95))
    results.save("a_swin_mini", 1, circular=(0.92, 1.0), cifar_standard=(0.92, 0.97), overrides=["--compile", "true"])
    results.save("a_swin_mini_no_anchor", 0, circular=(0.9, 0.999, 0.4))
    table = rendered("circular")
    assert "| A-Swin-mini | 91.00 ± 1.41 | 100.00 ± 0.00 | 100.00 ± 0.00 | 2 | 93.39 ± 0.12 |" in table
    assert "a GPU, torch 2, at commit 0123456789" in table
    assert "Run with `--compile true` beside the recipe." in table
    assert "| A-Swin-mini | 91.00 ± 1.41 | 96.00 ± 1.41 | 2 | 93.50 ± 0.19 |" in rendered("standard")
    assert "| without the anchor: the paper's modules alone | 90.00 | 99.90 | 40.00 | 1 | 93.39 ± 0.13 | 100.00 |" in (
        rendered("ablation")
    )
    assert "the paper's | 91.00 ± 1.41 | 100.00 ± 0.00 | 96.00 ± 1.41 | 2 |" in rendered("criterion")


@pytest.mark.parametrize(
    ("table", "runs", "shown"),
    [
        (
            "small_random_grids",
            {"a_cvt_mini_random_grids": (0.86, 1.0, 0.9), "cvt_mini_da_circular": (0.85, 0.88, 0.84)},
            [
                "| A-CvT-mini, random grids | 86.00 | 100.00 | 90.00 | 1 |",
                "| CvT-mini, trained on circular shifts (DA) | 85.00 | 88.00 | 84.00 | 1 |",
                "| A-Swin-mini, random grids | not run yet | not run yet | not run yet | 0 |",
            ],
        ),
        (
            "paper_size",  # from a folder of their own
            {"cifar10/a_swin_tiny_circular": (0.93, 1.0, 0.96), "cifar10/cvt_13_standard": (0.1, 0.1, 0.85)},
            [
                "| A-Swin-T | 93.00 | 100.00 | 100.00 | 96.00 | 1 | 93.39 ± 0.12 | 99.99 ± 0.01 | 96.00 ± 0.08 |",
                "| CvT-13 | not run yet | not run yet | not run yet | 85.00 | 0 |",
            ],
        ),
        ("small_circular", {"cifar10/a_swin_tiny_circular": (0.93, 1.0, 0.96)}, ["| A-Swin-mini | not run yet |"]),
        ("small_circular", {"cvt_mini_circular": (0.8, 0.7, 0.6)}, ["| CvT-mini | 80.00 | 70.00 |"]),
        ("small_standard", {"cvt_mini_standard": (0.81, 0.5, 0.75)}, ["| CvT-mini | 81.00 | 75.00 | 1 |"]),
        ("small_standard", {"cvt_mini_circular": (0.8, 0.7, 0.6)}, ["| CvT-mini | not run yet |"]),
    ],
)
def test_each_recipe_is_in_its_table(results, table, runs, shown):
    for recipe, (top1, circular, standard) in runs.items():
        results.save(recipe, 0, circular=(top1, circular), cifar_standard=(top1, standard))
    for line in shown:
        assert line in TABLES[table].render()


def test_what_was_measured_of_finished_weights(results):
    twins = {"circular": (0.79, 1.0), "cifar-standard": (0.79, 0.55)}
    magnitudes = {f"magnitude-{most}": (0.8, 0.9) for most in (8, 16, 24, 32)}
    results.save_measured("cvt_mini_circular", "cuda", canonical=twins, adapted=twins, magnitude=magnitudes)
    distorted = {f"erased-{side}": (0.7, 0.6) for side in (0, 28, 42, 56, 70)}
    distorted |= {"circular": (0.9, 0.8), "flipped": (0.5, 0.4)}
    results.save_measured("swin_mini", "cpu", distorted=distorted)
    assert "| CvT-mini, canonicalized by the seam | 79.00 | 100.00 | 55.00 | 1 |" in rendered("canonical")
    assert "| + Adapt, as it is | 79.00 | 100.00 | 1 | 57.40 | 100.00 |" in rendered("adapted")
    assert "| CvT-mini | 90.00 | 90.00 | 90.00 | 90.00 |" in rendered("magnitude")
    assert "| Swin-mini | 70.00 / 60.00 |" in rendered("erased")
    assert "| Swin-mini | 90.00 | 80.00 | 50.00 | 40.00 |" in rendered("flips")


def test_each_seed_counts_wherever_it_was_measured(results):
    for seed, device, top1 in ((0, "cpu", 0.7), (1, "cpu", 0.1), (1, "cuda", 0.8), (2, "cuda", 0.9)):
        results.save_measured("swin_mini", device, seed=seed, adapted={"circular": (top1, 1.0)})
    assert "| Swin-mini, adapted as it is | 80.00 ± 10.00 | 100.00 ± 0.00 | not run yet | 3 |" in (
        rendered("canonical")
    )


def test_a_single_changed_answer_is_counted(results):
    exact = {"exactness_float32": {"circular": (0.9, 1 - 1 / 10_000, 1 - 3 / 80_000)}}
    results.save_measured("a_cvt_mini", "cuda", images=10_000, shifts=8, **exact)
    results.save_measured("shipped/a_cvt_mini", "cpu", images=200, shifts=8, exactness_float32={"circular": (0.9, 1.0)})
    results.save_measured("a_swin_mini", "cuda", images=200, shifts=8, exactness_float32={"circular": (0.9, 1.0)})
    rows = rendered("exactness").splitlines()[2:4]
    assert rows == ["| GPU | float32 | 2 | 10,200 | 81,600 | 1 | 3 |", "| CPU | float32 | 1 | 200 | 1,600 | 0 | 0 |"]


def test_a_plot_is_drawn_of_what_is_there_and_stays_the_same(results, tmp_path):
    plots.draw(tmp_path / "images")
    assert not (tmp_path / "images").exists()
    results.save("a_swin_mini", 0, circular=(0.9, 1.0))
    drawn = []
    for _ in range(2):
        plots.draw(tmp_path / "images")
        drawn.append((tmp_path / "images" / plots.LEARNING).read_bytes())
    assert drawn[0] == drawn[1]
    assert b"A-Swin-mini" in drawn[0]
    assert len(drawn[0]) < 100_000
    assert f"images/{plots.LEARNING}" in rendered("curves")


@pytest.mark.skipif(not PAPER.is_file(), reason=f"needs the paper in {PAPER}")
def test_the_papers_numbers_are_those_of_its_tables():
    kept = json.loads((ROOT / "results" / "paper_results.json").read_text())["tables"]
    assert len(kept) == 8
    for table in kept.values():
        label = table["label"].removeprefix("tab:")
        assert table["rows"] == rows_of(label), label
        assert table["caption"] == caption_of(label)
        assert {len(row) for row in table["rows"].values()} == {len(table["columns"])}
