"""The clocks and tables behind our numbers. Nothing here depends on how fast anything is."""

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import bench, prose
from benchmarks.common import contestants, record, timing
from benchmarks.common.contestants import Family
from benchmarks.manifest import TABLES
from benchmarks.speed import modules_speed
from benchmarks.speed import tables as speed_tables

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def tables(monkeypatch, tmp_path):
    """Tables of a folder that holds nothing but the paper's numbers."""
    shutil.copy(ROOT / "results" / "paper_speed.json", tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    return speed_tables


def save(name, results, date="2026-01-01"):
    machine = {"processor": "a processor", "threads": 4, "gpu": "a GPU"}
    recorded = {"date": date, "machine": machine, "versions": {"torch": "2"}, "commit": "0123456789abcdef"}
    (record.RESULTS / f"{name}.json").write_text(json.dumps({**recorded, "result": {"results": results}}))


def speeds(adaptive=0.5, **other):
    rows = [
        {"name": name, "images_per_second": 1000.0, "ratio": ratio, "quartiles": [ratio - 0.1, ratio + 0.1]}
        for name, ratio in (("reference", 1.0), ("ours, adaptive", adaptive))
    ]
    rows = [{**row, "milliseconds": 1.0, "seconds": [0.1], "allocated_mib": 10.0 * row["ratio"]} for row in rows]
    setting = {"model": "swin_tiny_patch4_window7_224", "size": 224, "batch": 128, "work": "inference"}
    return {**setting, "precision": "bf16", "mode": "compiled", "device": "cuda", "rows": rows, **other}


def test_everything_runs_in_every_round_and_half_of_them_backwards():
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    times = timing.interleaved(runs, rounds=4, cuda=False, round_s=0)
    assert "".join(order) == "abc" + "abccba" * 2  # the first to see how long they take
    assert [len(taken) for taken in times.values()] == [4, 4, 4]


def test_ratios_are_those_of_the_rounds_and_an_error_is_one_line():
    middle, quartiles = timing.ratio([1.0, 2.0, 30.0, 4.0, 5.0], [1.0, 1.0, 10.0, 1.0, 1.0])
    assert (middle, quartiles) == (3, [2, 4])
    assert timing.spread([7.0]) == (7, [7, 7])
    assert timing.difference([3.0, 5.0], [1.0, 1.0]) == 3
    assert timing.in_words(ValueError("\n  too much\nof it")) == "ValueError: too much"


def test_every_module_that_is_measured_is_found_in_its_network(monkeypatch):
    minis = {name: Family(f"{name}_mini", 32) for name in ("swin", "cvt", "mvitv2")}
    monkeypatch.setattr(contestants, "FAMILIES", minis)
    cases, errors = modules_speed.collect(list(minis), modules_speed.Setting("cpu", 1, 32, "float32"))
    assert (len(cases), errors) == (18, [])


def test_tables_of_nothing_say_so(tables):
    for name, table in TABLES.items():
        if name.startswith("speed_"):
            assert "ot measured yet" in table.render(), name


def test_the_latest_measurement_of_a_setting_counts(tables):
    save("model_speed_b", [speeds(adaptive=0.5)], "2026-01-02")
    save("model_speed_a", [speeds(adaptive=0.7)], "2026-01-01")
    line = "| 1,000 img/s | 0.500 (0.400 to 0.600) | 0.500 |"
    assert f"| Swin-T | bf16, compiled, batch 128 {line}" in tables.inference()
    assert "| SwinV2-T | bf16, compiled, batch 128 | not measured yet |" in tables.inference()
    assert "| Swin-T | 0.50 | not measured yet |" in tables.summary()


FAILED = {"name": "ours, adaptive", "error": "Oops: no"}
ON_CPU = {"batch": 8, "mode": "eager", "precision": "float32", "device": "cpu"}


@pytest.mark.parametrize(
    ("table", "measured", "date", "shown"),
    [
        ("latency", {"batch": 1, "mode": "graph"}, "2026", "CUDA graph, batch 1 | 1.00 ms | 2.000 (1.667 to 2.500) |"),
        ("memory", {"batch": 64, "mode": "eager"}, "2026", "inference | 10 MiB | 0.500 |  | 1.000 | 1.022 |"),
        ("cpu", ON_CPU, "2027", "On a processor, 4 threads, torch 2. "),
        ("cpu", ON_CPU, "2026-11-16", "torch 2 (at commit 0123456789, when merges on a CPU used Winograd's products)"),
        ("inference", {"rows": [{"name": "reference"}, FAILED]}, "2026", "failed: Oops: no"),
        ("summary", {"rows": [{"name": "reference"}, FAILED]}, "2026", "| Swin-T | failed |"),
    ],
)
def test_what_tables_show(tables, table, measured, date, shown):
    """Latency as times, memory beside the paper's, the processor that did the work, and what failed."""
    save("model_speed_a", [speeds(**measured)], date)
    assert shown in getattr(tables, table)()


def test_larger_images_follow_the_models_own_size(tables):
    larger = speeds(adaptive=0.8, size=448, batch=32, mode="eager")
    save("model_speed_a", [larger, speeds(adaptive=0.7, mode="eager")])
    own, other = tables.resolution().splitlines()[2:4]
    assert "224 x 224, bf16, eager, batch 128" in own
    assert "448 x 448, bf16, eager, batch 32" in other


def test_modules_stand_beside_the_papers(tables):
    rows = [
        {"name": "tokenization", "ordinary_ms": 1.0, "adaptive_ms": 1.5, "delta_ms": 0.5, "adaptive_of_block": 0.2},
        {"name": "window selection, stage 1", "adaptive_ms": 0.25, "delta_ms": 0.25},
        {"name": "cvt", "error": "Oops: no"},
    ]
    setting = {"device": "cuda", "batch": 128, "size": 224, "precision": "bf16", "mode": "graph"}
    save("modules_speed_cuda", [{**setting, "rows": rows}])
    text = tables.modules()
    assert "| tokenization | 1.000 ms |  | 1.500 ms | +0.500 ms | 0.20 | +27.52 ms |" in text
    assert "| window selection, stage 1 |  |  | 0.250 ms | +0.250 ms |  | +7.63 ms |" in text
    assert "| cvt | Oops: no |" in text


def test_every_table_of_the_documents_is_in_the_manifest_and_the_reverse():
    named = [name for document in bench.DOCUMENTS for name in re.findall(r"<!-- table (\w+) -->", read(document))]
    assert set(named) == set(TABLES)
    for name, table in TABLES.items():
        assert (ROOT / "benchmarks" / table.command.split()[0]).is_file(), name
        assert any(list(record.RESULTS.glob(pattern)) for pattern in table.results.split()), name


def read(document):
    return (ROOT / document).read_text()


def test_a_wrong_number_and_a_wrong_cell_are_found():
    text = "about <!-- number 1 + 0.26 -->1.2<!-- end --> points, <!-- number 2000 -->1<!-- end -->"
    assert bench.rendered(text) == text.replace(">1.2<", ">1.3<").replace(">1<", ">2,000<")
    text = "<!-- table frame_stability -->\n| wrong |\n<!-- end -->"
    assert "one pixel by one level" in bench.rendered(text)
    assert bench.rendered(text, only="camvid") == text


def test_a_number_without_a_file_behind_it_is_found():
    marked = "<!-- number 1.26 -->1.3<!-- end -->"
    text = f"took 1.4 times as long, 12 % more\n`0.5`\n| 3.2 |\n{marked}, torch 2.11, in 3 seeds"
    assert bench.unmarked(text) == ["1.4", "12 %"]
    with pytest.raises(SystemExit, match=r'top1\("swim"\) -->: StatisticsError'):
        prose.number('top1("swim")')
