"""The clocks and tables behind our numbers. Nothing here depends on how fast anything is."""

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import bench, prose
from benchmarks.bench import TABLES
from benchmarks.common import contestants, record, timing
from benchmarks.common.contestants import Family
from benchmarks.common.table import read_tables
from benchmarks.speed import modules_speed

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def results(monkeypatch, tmp_path):
    """A folder that holds nothing but the paper's numbers."""
    shutil.copy(ROOT / "results" / "paper_speed.json", tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path)


def test_everything_runs_in_every_round_and_half_of_them_backwards():
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    times = timing.interleaved(runs, rounds=4, cuda=False, round_s=0)
    assert "".join(order) == "abc" + "abccba" * 2  # the first to see how long they take
    assert [len(taken) for taken in times.values()] == [4, 4, 4]


def test_ratios_are_those_of_the_rounds_and_an_error_is_one_line():
    middle, quartiles = timing.ratio([1.0, 2.0, 30.0, 4.0, 5.0], [1.0, 1.0, 10.0, 1.0, 1.0])
    assert (middle, quartiles) == (3, [2, 4])
    assert timing.ratio([7.0], [1.0]) == (7, [7, 7])
    assert timing.in_words(ValueError("\n  too much\nof it")) == "ValueError: too much"


def test_every_module_that_is_measured_is_found_in_its_network(monkeypatch):
    minis = {name: Family(f"{name}_mini", 32) for name in ("swin", "cvt", "mvitv2")}
    monkeypatch.setattr(contestants, "FAMILIES", minis)
    cases, errors = modules_speed.collect(list(minis), timing.Setting("cpu", 1, 32, "float32", "eager"))
    assert (len(cases), errors) == (18, [])


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


def test_options_have_the_types_of_their_defaults(tmp_path, capsys):
    parser = record.options(None, "trainings", "cifar", parts=["ranges"])
    given = parser.parse_args(["--data", "x", "--runs", "a", "b", "--seeds", "1", "2", "--measure-only"])
    assert (given.runs, given.seeds, given.limit_s) == (["a", "b"], [1, 2], 0)
    assert (given.measure_only, given.compile) == (True, False)
    assert (given.work, given.weights, given.parts) == (ROOT / "runs" / "tables", None, None)
    with pytest.raises(SystemExit):
        parser.parse_args(["--data", "x", "--runs", "a", "--parts", "range"])
    assert "invalid choice: 'range'" in capsys.readouterr().err
    assert record.options(None, "speed", "model_speed").parse_args(["--batch", "8", "--size", "32"]).batch == [8]


def test_tables_of_nothing_say_so(results):
    for name, table in TABLES.items():
        if name.startswith("speed_"):
            assert "ot run yet" in table.render(), name


def save(name, rows):
    setting = {"model": "swin_tiny_patch4_window7_224", "size": 224, "batch": 128, "work": "inference"}
    setting |= {"precision": "bf16", "mode": "compiled", "device": "cuda", "rows": rows}
    machine = {"processor": "a processor", "threads": 4, "gpu": "a GPU"}
    recorded = {"date": "2026-01-01", "machine": machine, "versions": {"torch": "2"}, "result": {"results": [setting]}}
    (record.RESULTS / f"{name}.json").write_text(json.dumps(recorded))


def test_what_failed_is_shown(results):
    """All that can be measured is in the documents, whose tables test_house.py renders."""
    save("model_speed_a", [{"name": "reference"}, {"name": "ours, adaptive", "error": "Oops: no"}])
    save("modules_speed_cuda", [{"name": "cvt", "error": "Oops: no"}])
    assert "| failed: Oops: no |" in TABLES["speed_inference"].render()
    assert "| Swin-T | 28.3 M | failed: Oops: no |" in TABLES["speed_summary"].render()
    assert "| cvt | failed: Oops: no |" in TABLES["speed_modules"].render()


def test_every_column_of_the_documents_has_a_number():
    """A name that is misspelled in a cell reads as what was not measured, in every row."""
    for name, table in TABLES.items():
        for part in re.findall(r"(?:^\|.*\n?)+", table.render(), re.MULTILINE):
            heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines())
            for head, *cells in zip(heads, *rows, strict=True):
                assert set(cells) - {record.NOT_YET}, f"{name}: {head}"


def test_every_table_of_the_documents_is_in_the_manifest_and_the_reverse():
    named = [name for document in bench.DOCUMENTS for name in re.findall(r"<!-- table (\w+) -->", read(document))]
    assert set(named) == set(TABLES)
    for name, table in TABLES.items():
        assert (ROOT / "benchmarks" / f"{table.command.split()[0].replace('.', '/')}.py").is_file(), name


def test_commands_are_listed_as_a_shell_takes_them(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench.py", "list"])
    assert bench.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [*TABLES]
    assert not [line for line in lines if re.search(r"\s[^\s']*[*?]", line)]
    words = "python -m benchmarks.accuracy.cifar --data data/cifar10 --runs '*' 'shipped/*'"
    assert any(line.startswith(f"small_summary: {words}") for line in lines)


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
