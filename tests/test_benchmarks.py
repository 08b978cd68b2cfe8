"""The clocks, tables and programs behind our numbers. Nothing here depends on how fast anything is."""

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
from benchmarks.accuracy import fields, motion, rows
from benchmarks.bench import TABLES
from benchmarks.common import contestants, record, timing
from benchmarks.common.contestants import Family
from benchmarks.common.table import read_tables
from benchmarks.speed import modules_speed

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def results(monkeypatch, tmp_path):
    """A folder that holds nothing but the paper's numbers."""
    for file in (ROOT / "results").glob("paper_*.json"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    return tmp_path


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


def test_the_curves_are_drawn_the_same_each_time(tmp_path):
    drawn = []
    for name in "ab":
        rows.draw_curves(tmp_path / name)
        drawn.append((tmp_path / name / rows.CURVES).read_bytes())
    assert drawn[0] == drawn[1]
    assert b"A-Swin-mini" in drawn[0]


# one run of each program that trains or measures; for networks on images see test_small_models.py


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


@pytest.fixture
def networks(tmp_path, monkeypatch):
    """Small random networks, and three images of their own."""
    for number, label in enumerate("abc"):
        image = torch.rand(64, 64, 3, generator=torch.Generator().manual_seed(number)).mul(255).byte().numpy()
        (tmp_path / "squares" / label).mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / "squares" / label / "0.png")
    small = {"patch_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1), "num_classes": 3}
    for name, model, size in (("plain", "swin_mini", 32), ("ours", "a_swin_mini", 32), ("large", "swin_mini", 64)):
        trueshift.create_model(model, img_size=size, **small).save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)


def table(where):
    written = TABLES["motion_cifar10"]
    return replace(written, keys=written.keys | {"rows": f"motion.rows({where!r})"}).render().splitlines()


def test_methods_and_rows_follow_from_the_networks(results, networks, monkeypatch):
    words = "--networks ordinary=plain adaptive=ours --data squares --limit 1 --title"
    call(monkeypatch, "accuracy/motion.py", *words.split(), "A net, flips only")
    motion.main()
    result = record.load("motion_squares_a_net_flips_only")["result"]
    for name in ("adaptive", "adaptive, 4 grids"):
        assert result["methods"][name]["measured"]["circular"]["bit_exact"]["rate"] == 1
    assert result["data"].startswith("part of")  # of a folder, which is sorted by class
    head, _, *lines = table("squares")
    for title in ("passes", "Top-1", "C-Cons.", "crop 8", "flicker", "JPEG"):
        assert f"| {title} |" in head
    shown = [line.split(" | ")[0].removeprefix("| A net, flips only, ") for line in lines if line.startswith("| ")]
    assert sorted(shown) == sorted(result["methods"])
    assert "-" not in lines[0].split(" | ")[1:]  # Top-1 too: the classes are the network's
    assert lines[-1].startswith("1 images; ")


def test_photographs_and_the_mean_over_crops(results, networks, monkeypatch):
    for words in ("--photos squares --limit 1", "--data squares --crops 1 2 --limit 3"):
        call(monkeypatch, "accuracy/motion.py", "--networks", "ordinary=plain", *words.split())
        motion.main()
    assert any(line.startswith("| Swin-mini, ordinary, video | 1 | - |") for line in table("photos"))
    result = record.load("steady_crops_swin")["result"]
    assert (result["images"], [*result["top1"]]) == (3, ["centre", "1", "2"])


def test_networks_have_names_and_one_size(networks):
    for words, message in ((["plain"], "plain: needs NAME=MODEL"), (["a=plain", "b=large"], "one size")):
        with pytest.raises(SystemExit, match=message):
            motion.load_networks(words)
