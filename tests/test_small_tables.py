"""Tables and plots of the small models: what those in the documents do not show (see test_house.py)."""

import json
import shutil
from pathlib import Path

import pytest
from paper_tables import PAPER, caption_of, rows_of

from benchmarks.accuracy import rows, store
from benchmarks.bench import TABLES
from benchmarks.common import record

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

    def save(recipe, seed, **evaluation):
        measured = {name.replace("_", "-"): rates(*numbers) for name, numbers in evaluation.items()}
        kept = {"recipe": recipe, "model": "", "config": {"model": {}}, "data": {}, "overrides": []}
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


def test_networks_of_the_papers_size_are_trained_for_each_kind_of_shift(results):
    for recipe, top1, consistency in (("a_swin_tiny_circular", 0.93, 0.96), ("cvt_13_standard", 0.1, 0.85)):
        results.save(f"cifar10/{recipe}", 0, circular=(top1, 1.0), cifar_standard=(top1, consistency))
    table = TABLES["paper_size"].render()
    assert "| A-Swin-T | 93.00 | 100.00 | 100.00 | 96.00 | 1 | 93.39 ± 0.12 | 99.99 ± 0.01 | 96.00 ± 0.08 |" in table
    assert "| CvT-13 | not run yet | not run yet | not run yet | 85.00 | 0 |" in table
    assert "| A-Swin-mini | not run yet |" in rendered("circular")


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
    rows.draw_curves(tmp_path / "images")
    assert not (tmp_path / "images").exists()
    results.save("a_swin_mini", 0, circular=(0.9, 1.0))
    drawn = []
    for _ in range(2):
        rows.draw_curves(tmp_path / "images")
        drawn.append((tmp_path / "images" / rows.CURVES).read_bytes())
    assert drawn[0] == drawn[1]
    assert b"A-Swin-mini" in drawn[0]
    assert len(drawn[0]) < 100_000
    assert f"images/{rows.CURVES}" in rendered("curves")


@pytest.mark.skipif(not PAPER.is_file(), reason=f"needs the paper in {PAPER}")
def test_the_papers_numbers_are_those_of_its_tables():
    kept = json.loads((ROOT / "results" / "paper_results.json").read_text())["tables"]
    assert len(kept) == 8
    for table in kept.values():
        label = table["label"].removeprefix("tab:")
        assert table["rows"] == rows_of(label), label
        assert table["caption"] == caption_of(label)
        assert {len(row) for row in table["rows"].values()} == {len(table["columns"])}
