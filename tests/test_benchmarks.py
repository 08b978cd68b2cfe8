"""The clocks, tables and programs behind our numbers. Nothing here depends on how fast anything is."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import trueshift
from benchmarks import bench, prose
from benchmarks.accuracy import fields, motion, rows, store
from benchmarks.bench import TABLES
from benchmarks.common import contestants, record, timing
from benchmarks.common.contestants import Family
from benchmarks.common.table import read_tables
from benchmarks.speed import modules_speed

ROOT = Path(__file__).resolve().parents[1]
ABOUT = {
    "command": "",
    "commit": "0123456789abcdef",
    "date": "2026-01-01",
    "machine": {"processor": "a processor", "threads": 4, "gpu": "a GPU"},
    "versions": {"torch": "2"},
}


@pytest.fixture
def results(monkeypatch, tmp_path):
    """A folder that holds nothing but the paper's numbers."""
    for file in (ROOT / "results").glob("paper_*.json"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    return tmp_path


def save(name, result):
    (record.RESULTS / f"{name}.json").write_text(json.dumps({**ABOUT, "result": result}))


def call(monkeypatch, program, *words):
    monkeypatch.setattr(sys, "argv", [str(ROOT / "benchmarks" / program), *map(str, words)])


def test_everything_runs_in_every_round_and_half_of_them_backwards():
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    times = timing.interleaved(runs, rounds=4, cuda=False, round_s=0)
    assert "".join(order) == "abc" + "abccba" * 2  # the first to see how long they take
    assert [len(taken) for taken in times.values()] == [4, 4, 4]
    assert timing.ratio([1.0, 2.0, 30.0, 4.0, 5.0], [1.0, 1.0, 10.0, 1.0, 1.0]) == (3, [2, 4])


def test_every_module_that_is_measured_is_found_in_its_network(monkeypatch):
    minis = {name: Family(f"{name}_mini", 32) for name in ("swin", "cvt", "mvitv2")}
    monkeypatch.setattr(contestants, "FAMILIES", minis)
    cases, errors = modules_speed.collect(list(minis), timing.Setting("cpu", 1, 32, "float32", "eager"))
    assert (len(cases), errors) == (18, [])


# tables and numbers of the documents


WRITTEN = """
[_all]
command = "speed.model_speed"
rows = "[{'name': 'a', 'kind': 1, 'rate': 0.5}, {'name': 'b', 'kind': 1, 'error': 'no'}, {'name': 'c', 'kind': 2}]"
columns = [["name", "{name}"], ["rate", "{rate:.0%}"], ["twice", "{times * rate}"], ["other", "{other}"]]
times = 2
note = "{len(rows)} of {name}."
[kinds]
like = "_all"
by = "kind"
[measured]
like = "_all"
times = 3
rows = "[{'name': 'c', 'missing': '-'}]"
optional = ["rate", "other"]
"""


def test_tables_are_rendered_as_their_keys_say(tmp_path):
    (tmp_path / "tables.toml").write_text(WRITTEN)
    tables = read_tables(tmp_path / "tables.toml", {})
    assert list(tables) == ["kinds", "measured"]
    first, second = tables["kinds"].render().split("\n\n2 of a.\n\n")
    assert first.splitlines() == [
        "| name | rate | twice | other |",
        "|---|---|---|---|",
        "| a | 50 % | 1.0 | not run yet |",
        "| b | failed: no | failed: no | failed: no |",
    ]
    assert second.splitlines()[2:] == ["| c | not run yet | not run yet | not run yet |", "", "1 of c."]
    assert tables["measured"].render() == "| name | twice |\n|---|---|\n| c | - |\n\n1 of c."


def test_tables_of_nothing_say_so_beside_the_papers_numbers(results):
    for name, table in TABLES.items():
        if name.startswith(("speed_", "small_", "paper_size", "fields_", "motion_")):
            assert "ot run yet" in table.render(), name
    assert "| not run yet | 0 | 93.39 ± 0.12 | 99.99 ± 0.01 |" in TABLES["small_circular"].render()


def test_every_column_of_the_documents_has_a_number():
    """A name that is misspelled in a cell reads as what was not measured, in every row."""
    for name, table in TABLES.items():
        for part in re.findall(r"(?:^\|.*\n?)+", table.render(), re.MULTILINE):
            heads, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines())
            for head, *cells in zip(heads, *lines, strict=True):
                assert set(cells) - {record.NOT_YET}, f"{name}: {head}"


def test_every_table_of_the_documents_is_in_the_manifest_and_the_reverse():
    documents = [(ROOT / document).read_text() for document in bench.DOCUMENTS]
    assert {name for text in documents for name in re.findall(r"<!-- table (\w+) -->", text)} == set(TABLES)
    for name, table in TABLES.items():
        assert (ROOT / "benchmarks" / f"{table.command.split()[0].replace('.', '/')}.py").is_file(), name


def test_commands_are_listed_as_a_shell_takes_them(monkeypatch, capsys):
    call(monkeypatch, "bench.py", "list")
    assert bench.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if re.search(r"\s[^\s']*[*?]", line)]
    words = "python -m benchmarks.accuracy.cifar --data data/cifar10 --runs '*' 'shipped/*'"
    assert any(line.startswith(f"small_summary: {words}") for line in lines)


def test_a_wrong_number_a_wrong_cell_and_a_number_without_a_file_are_found():
    text = "about <!-- number 1 + 0.26 -->1.2<!-- end --> points, <!-- number 2000 -->1<!-- end -->"
    assert bench.rendered(text) == text.replace(">1.2<", ">1.3<").replace(">1<", ">2,000<")
    text = "<!-- table frame_stability -->\n| wrong |\n<!-- end -->"
    assert "one pixel by one level" in bench.rendered(text)
    assert bench.rendered(text, only="camvid") == text
    marked = "<!-- number 1.26 -->1.3<!-- end -->"
    text = f"took 1.4 times as long, 12 % more\n`0.5`\n| 3.2 |\n{marked}, torch 2.11, in 3 seeds"
    assert bench.unmarked(text) == ["1.4", "12 %"]
    with pytest.raises(SystemExit, match=r'top1\("swim"\) -->: StatisticsError'):
        prose.number('top1("swim")')


def test_what_failed_is_shown(results):
    setting = {"model": "swin_tiny_patch4_window7_224", "size": 224, "batch": 128, "work": "inference"}
    setting |= {"precision": "bf16", "mode": "compiled", "device": "cuda"}
    measured = [{"name": "reference"}, {"name": "ours, adaptive", "error": "Oops: no"}]
    save("model_speed_a", {"results": [{**setting, "rows": measured}]})
    assert "| failed: Oops: no |" in TABLES["speed_inference"].render()
    assert "| Swin-T | 28.3 M | failed: Oops: no |" in TABLES["speed_summary"].render()


# networks on images


def rates(top1, consistency, exact=1.0):
    named = {"top1": top1, "consistency": consistency, "bit_exact": exact, "worst_case": consistency}
    return {key: {"rate": rate, "images": 1000} for key, rate in named.items()}


def trained(recipe, seed, **evaluation):
    measured = {name.replace("_", "-"): rates(*numbers) for name, numbers in evaluation.items()}
    kept = {"recipe": recipe, "model": "", "config": {"model": {}}, "data": {}, "overrides": [], "steps": 1}
    kept |= {"evaluation": measured, "curve": {"top1": [[5, 0.5], [10, 0.9]]}}
    kept |= {"seconds": 120.0, "images_per_second": 1.0, "best_top1": 0.9}
    return {**ABOUT, "seed": seed, "result": kept}


def measured_later(recipe, seed, device, part, *numbers, images=1000, shifts=2):
    how = {"settings": {"shifts": shifts, "device": device}, "images": images, "protocols": {}, "weights": "float32"}
    parts = {part: {**how, "measured": {"circular": rates(*numbers)}}}
    return {**ABOUT, "seed": seed, "result": {"recipe": recipe, "model": "", "parts": parts}}


def test_rows_of_networks_on_images(results, tmp_path):
    store.take_in(
        [
            trained("cifar10/a_swin_tiny_circular", 0, circular=(0.93, 1.0), cifar_standard=(0.93, 0.96)),
            *(trained("a_swin_mini", seed, circular=(0.9, 1.0)) for seed in (0, 0)),  # the second replaces the first
            *(  # each seed counts wherever it was measured, on a GPU if there too
                measured_later("swin_mini", seed, device, "adapted", top1, 1.0)
                for seed, device, top1 in ((0, "cpu", 0.7), (1, "cpu", 0.1), (1, "cuda", 0.8), (2, "cuda", 0.9))
            ),
            measured_later("a_cvt_mini", 0, "cuda", "exactness_float32", 0.9, 1 - 1e-4, 1 - 3 / 8e4, 10_000, 8),
            measured_later("a_swin_mini", 0, "cuda", "exactness_float32", 0.9, 1.0, images=200, shifts=8),
        ]
    )
    found = {name: TABLES[name].render() for name in ("paper_size", "small_canonical", "small_exactness")}
    assert "| A-Swin-T | 93.00 | 100.00 | 100.00 | 96.00 | 1 | 93.39 ± 0.12 | 99.99" in found["paper_size"]
    row = "| Swin-mini, adapted as it is | 80.00 ± 10.00 | 100.00 ± 0.00 | not run yet | 3 |"
    assert row in found["small_canonical"]
    assert "| GPU | float32 | 2 | 10,200 | 81,600 | 1 | 3 |" in found["small_exactness"]  # one changed answer counts
    rows.draw_curves(tmp_path / "images")
    drawn = (tmp_path / "images" / rows.CURVES).read_bytes()
    rows.draw_curves(tmp_path / "images")
    assert (tmp_path / "images" / rows.CURVES).read_bytes() == drawn  # is the same each time
    assert b"A-Swin-mini" in drawn


# fields


def test_a_table_of_fields_has_the_rollouts_that_all_results_have(results):
    for run, seed, error, apart, lengths in (
        ("adaptive", 0, 0.1, 0.0, (1, 10, 12)),
        ("adaptive", 1, 0.3, 0.0, (1, 10)),
        ("ordinary", 0, 0.5, 0.25, (1, 10)),
    ):
        result = {key: dict.fromkeys(map(str, lengths), value) for key, value in
                  (("relative_l2", error), ("shift_error", apart))}  # fmt: skip
        result |= {"harmonics": {"error": {"2": 0.0, "8": 0.125}}, "patches": [2, 8], "steps": 20000}
        save(f"fields_navier_stokes_{run}_seed{seed}", result)
    head, _, *lines = TABLES["fields_navier_stokes"].render().splitlines()
    assert head.startswith("| network | 1 step | 10 steps | shift error |")
    assert "| A-SwinV2-mini | 20.00 ± 14.14 | 20.00 ± 14.14 | 0 | 12.50 ± 0.00 | 20,000 | 2 |" in lines
    assert "| SwinV2-mini | 50.00 | 50.00 | 2.5e-01 | 12.50 | 20,000 | 1 |" in lines
    assert "a rolled rollout of 10 steps" in lines[-1]


@pytest.mark.slow
def test_the_whole_program_of_fields(results, tmp_path, monkeypatch):
    made = "--train 40 --test 2 --times 4 --size 32 --solve-at 64 --spin-up 0"
    words = ["--runs", "ordinary", "adaptive", "--jobs", "1", "--device", "cpu", "--make", made]
    words += ["--schedule.steps", "3", "--schedule.warmup_steps", "0", "--optimizer.lr", "1e-4", "--batch_size", "8"]
    call(monkeypatch, "accuracy/fields.py", *words, "--data", tmp_path / "data", "--work", tmp_path / "runs")
    task = fields.TASKS["navier_stokes"]._replace(lengths=(1, 3, 50))  # 50: left out
    monkeypatch.setitem(fields.TASKS, "navier_stokes", task)
    assert fields.main() == 0
    found = [record.load(f"fields_navier_stokes_{run}_seed0") for run in ("ordinary", "adaptive")]
    assert all({"command", "commit", "machine", "seed", "versions"} < each.keys() for each in found)
    ordinary, adaptive = (each["result"] for each in found)
    assert ordinary["config"]["batch_size"] == adaptive["config"]["batch_size"] == 8
    assert ordinary["shift_error"]["3"] > adaptive["shift_error"]["3"] == 0
    assert fields.main() == 0  # nothing left to do


# networks while the camera moves


@pytest.fixture
def measure(results, tmp_path, monkeypatch):
    """Measure small random networks on three images of their own."""
    for number, label in enumerate("abc"):
        image = torch.rand(64, 64, 3, generator=torch.Generator().manual_seed(number)).mul(255).byte().numpy()
        (tmp_path / "squares" / label).mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / "squares" / label / "0.png")
    small = {"patch_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1), "num_classes": 3}

    def measure(networks, *words):
        given = []
        for name, (model, size) in networks.items():
            trueshift.create_model(model, img_size=size, **small).save_pretrained(tmp_path / f"{model}_{size}")
            given.append(f"{name}={tmp_path / f'{model}_{size}'}")
        words = [tmp_path / "squares" if word == "squares" else word for word in words]
        call(monkeypatch, "accuracy/motion.py", "--networks", *given, *words)
        motion.main()

    return measure


def table(where):
    written = TABLES["motion_cifar10"]
    return replace(written, keys=written.keys | {"rows": f"motion.rows({where!r})"}).render().splitlines()


def test_methods_and_rows_follow_from_the_networks(measure):
    measure(
        {"ordinary": ("swin_mini", 32), "adaptive": ("a_swin_mini", 32)},
        *("--title", "A net, flips only", "--data", "squares", "--limit", "1"),
    )
    result = record.load("motion_squares_a_net_flips_only")["result"]
    for name in ("adaptive", "adaptive, 4 grids"):
        assert result["methods"][name]["measured"]["circular"]["bit_exact"]["rate"] == 1
    assert result["data"].startswith("part of")  # of a folder, which is sorted by class
    head, _, *lines = table("squares")
    for title in ("passes", "Top-1", "C-Cons.", "crop 8", "flicker", "JPEG"):
        assert f"| {title} |" in head
    shown = [line.split(" | ")[0].removeprefix("| A net, flips only, ") for line in lines if line.startswith("| ")]
    assert shown == [*result["methods"]]
    assert "-" not in lines[0].split(" | ")[1:]  # Top-1 too: the classes are the network's
    assert lines[-1].startswith("1 images; ")


def test_photographs_and_the_mean_over_crops(measure):
    measure({"ordinary": ("swin_mini", 32)}, "--photos", "squares", "--limit", "1")
    assert any(line.startswith("| Swin-mini, ordinary, video | 1 | - |") for line in table("photos"))
    measure({"ordinary": ("swin_mini", 32)}, "--data", "squares", "--crops", "1", "2", "--limit", "3")
    result = record.load("steady_crops_swin")["result"]
    assert (result["images"], [*result["top1"]]) == (3, ["centre", "1", "2"])


def test_networks_have_names_and_one_size(measure):
    with pytest.raises(SystemExit, match=r"swin_mini: needs NAME=MODEL"):
        motion.load_networks(["swin_mini"])
    with pytest.raises(SystemExit, match=r"\(32, 32\), \(64, 64\).*one size"):
        measure({"ordinary": ("swin_mini", 32), "adaptive": ("a_swin_mini", 64)}, "--data", "squares")
