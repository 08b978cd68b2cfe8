import json
from dataclasses import replace

import pytest
from known_models import ReadsOnePixel, Watched, evaluated_by, subject

from trueshift.cli import main
from trueshift.data import EmbeddedSample
from trueshift.eval import EvalOptions, find_protocols, run_evaluation

SETTINGS = EvalOptions(shifts=3, limit=30, batch_size=16, workers=2)
PROTOCOLS = ["cifar", "magnitude-8", "erased-28"]


def evaluated(output=None, progress=None, model=None, **changes):
    model = model or subject(ReadsOnePixel())
    settings = replace(SETTINGS, **changes)
    return run_evaluation(model, EmbeddedSample(), find_protocols(PROTOCOLS), settings, output, progress)


def test_answers_on_disk_change_nothing(tmp_path):
    assert evaluated(tmp_path)["measured"] == evaluated()["measured"]


@pytest.mark.parametrize(
    "written", [b"no json\n{}\n", b"{}\n\0\0\n", b'{}\n{"index": 3}\n', b"[]\n{}\n", b"\xff\n{}\n"]
)
def test_damaged_answers_are_told_by_their_file(tmp_path, written):
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / "process-0-of-1.jsonl").write_bytes(written)
    with pytest.raises(ValueError, match=r"process-0-of-1.jsonl.*: needs another --output"):
        evaluated(tmp_path)


def test_answers_of_an_older_version_are_refused(tmp_path):
    evaluated(tmp_path)
    (file,) = (tmp_path / "answers").iterdir()
    question, rest = file.read_text().split("\n", 1)
    older = {key: value for key, value in json.loads(question).items() if key != "schema"}
    file.write_text(json.dumps(older) + "\n" + rest)
    with pytest.raises(ValueError, match="written by another version of trueshift: needs another --output"):
        evaluated(tmp_path)


def test_interrupted_it_goes_on_where_it_was(tmp_path):
    def interrupted(what, done, total):
        if done == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluated(tmp_path, interrupted)
    (file,) = (tmp_path / "answers").iterdir()
    with file.open("a") as torn:  # as a killed process may leave it
        torn.write('{"index": 12, "name"')

    model = subject(ReadsOnePixel())
    counting = Watched(model.forward)
    again = evaluated(tmp_path, model=replace(model, forward=counting))
    assert again["measured"] == evaluated()["measured"]
    views = 3 + 1 + 3 + 2 + 3 + 1  # of each image: circular with the unshifted one, standard, magnitude, erased
    assert 0 < counting.shown <= -(-19 * views // 16) * 16
    asked = counting.shown
    evaluated(tmp_path, model=replace(model, forward=counting))
    assert counting.shown == asked  # all known: nothing is asked again


def test_pictures_that_were_repaired_are_measured(tmp_path):
    class Flaky(EmbeddedSample):
        broken = (3, 4)

        def __getitem__(self, index):
            if index in self.broken:
                raise OSError("connection reset")
            return super().__getitem__(index)

    source = Flaky()
    for _ in range(2):  # broken still, they are told as before
        result = run_evaluation(subject(ReadsOnePixel()), source, find_protocols(PROTOCOLS), SETTINGS, tmp_path)
        assert [entry["name"] for entry in result["data"]["skipped"]] == [source.name(index) for index in source.broken]
    source.broken = ()
    result = run_evaluation(subject(ReadsOnePixel()), source, find_protocols(PROTOCOLS), SETTINGS, tmp_path)
    assert result["data"]["skipped"] == []
    assert result["measured"] == evaluated()["measured"]


@pytest.mark.parametrize("change", [{"seed": 1}, {"shifts": 4}, {"limit": 20}])
def test_answers_to_another_question_are_refused(tmp_path, change):
    evaluated(tmp_path)
    with pytest.raises(ValueError, match=r"another question.*was.*is.*needs another --output"):
        evaluated(tmp_path, **change)


def test_answers_to_other_images_are_refused(tmp_path):
    class Renamed(EmbeddedSample):
        def name(self, index):
            return f"other {index}"

    evaluated(tmp_path)
    with pytest.raises(ValueError, match="was cat 0, is other 0"):
        run_evaluation(subject(ReadsOnePixel()), Renamed(), find_protocols(PROTOCOLS), SETTINGS, tmp_path)


FACTORY = """
import torch
class Pixel(torch.nn.Module):
    num_classes = 2
    def forward(self, images):
        value = images[:, :, 0, 0].sum(1)
        return torch.stack([-value, value], 1)
"""


WORDS = ["pixel:Pixel", "--data", "sample", "--limit", "25", "--img-size", "32", "--crop-pct", "1"]
WORDS += ["--device", "cpu", "--protocols"]


def test_processes_share_the_images_and_the_result_is_that_of_one(tmp_path, monkeypatch):
    (tmp_path / "pixel.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    two = evaluated_by(2, tmp_path, "two", *WORDS, "circular")
    assert two["processes"] == 2
    assert two["measured"]["circular"]["consistency"]["images"] == 25
    for output in ("one", "two"):  # from the beginning, and gone on with another number of processes
        assert main(["eval", *WORDS, "circular", "--output", output]) == 0
        one = json.loads((tmp_path / output / "eval.json").read_text())
        assert one["processes"] == 1
        assert one["measured"] == two["measured"]


@pytest.mark.slow
def test_three_processes_with_uneven_shares(tmp_path):
    (tmp_path / "pixel.py").write_text(FACTORY)
    results = [evaluated_by(count, tmp_path, f"with-{count}", *WORDS, "cifar", "magnitude") for count in (1, 2, 3)]
    assert results[0]["measured"] == results[1]["measured"] == results[2]["measured"]
