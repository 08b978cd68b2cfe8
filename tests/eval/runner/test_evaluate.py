"""Models on whole data sets: known answers, resuming, processes, the command, and what is refused."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import known_models
import numpy as np
import pytest
import torch
from known_models import (
    SMALL,
    TINY,
    ByPixel,
    ByPlace,
    Constant,
    ReadsOnePixel,
    Scenes,
    Watched,
    noise,
    segmenter,
    subject,
)
from PIL import Image
from unchecked import run_unchecked

from trueshift.cli import main
from trueshift.data import EmbeddedSample
from trueshift.eval import EvalOptions, find_protocols, make_eval_model, run_evaluation

OPTIONS = EvalOptions(shifts=3, limit=12, batch_size=16, workers=2)
PROTOCOLS = find_protocols(["cifar", "magnitude-8", "erased-28"])
ADE20K = find_protocols(["ade20k"])


def evaluated(output=None, progress=None, model=None, source=None, **changes):
    model, source = model or subject(ReadsOnePixel()), source or EmbeddedSample()
    return run_evaluation(model, source, PROTOCOLS, replace(OPTIONS, **changes), output, progress)


def segmented(output=None, progress=None, model=None, source=None, **changes):
    model, source = model or segmenter(ByPlace()), source or Scenes(noise(6, (16, 21)))
    return run_evaluation(model, source, ADE20K, replace(OPTIONS, batch_size=3, **changes), output, progress)


def test_classes_that_are_not_the_datas_have_no_iou():
    found = segmented(source=Scenes(noise(2), ("red", "green", "blue", "grey")))["measured"]["ade20k-circular"]
    assert found["mean_iou"] is found["iou_by_class"] is None
    assert segmented(source=Scenes(noise(2), None))["measured"]["ade20k-circular"]["mean_iou"] is not None


def test_a_limit_takes_images_from_all_of_the_data():
    """Folders are sorted by class: the first images would all be of one."""
    options, asked = replace(OPTIONS, limit=7), Watched()
    run_evaluation(replace(subject(Constant()), forward=asked), EmbeddedSample(), PROTOCOLS[:1], options)
    source, shown = EmbeddedSample(), torch.cat(asked.batches)
    for index in [at * len(source) // 7 for at in range(7)]:
        assert (shown == TINY.normalise(TINY.canvas(source[index].image))).flatten(1).all(1).any()


def test_a_network_in_training_is_measured_in_evaluation_and_left_as_it_was():
    network = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Flatten(), torch.nn.BatchNorm1d(3 * 32 * 32))
    model = make_eval_model(network, "dropout", "none", OPTIONS)
    model = replace(model, preparation=TINY)
    expected = evaluated(model=model)
    network.train()
    network[0].eval()  # as a part that is frozen
    assert evaluated(model=model)["measured"] == expected["measured"]
    assert [module.training for module in network] == [False, True, True]
    assert not network[2].running_mean.any()


# resuming


@pytest.mark.parametrize(
    ("measure", "model", "first", "most"),
    [
        # of each image: circular with the unshifted one, in two ranges, standard, magnitude, erased
        (evaluated, subject(ReadsOnePixel()), 5, 7 * (3 + 1 + 3 + 3 + 2 + 3 + 1)),
        (segmented, segmenter(ByPlace()), 4, 2 * 9),  # of 1 + 3 + 3 views in batches of 3
    ],
)
def test_an_interrupted_run_resumes(tmp_path, measure, model, first, most):
    def interrupted(what, done, total):
        if done == first:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, interrupted)
    (file,) = (tmp_path / "answers").iterdir()
    with file.open("a") as torn:  # as a killed process may leave it
        torn.write('{"index": 12, "name"')
    counting = Watched(model.forward)
    resumed = measure(tmp_path, model=replace(model, forward=counting))
    assert resumed["measured"] == measure()["measured"]
    asked = counting.shown
    assert 0 < asked <= most
    measure(tmp_path, model=replace(model, forward=counting))
    assert counting.shown == asked  # all known: nothing is asked again


@pytest.mark.parametrize(
    "written", [b"no json\n{}\n", b"{}\n\0\0\n", b'{}\n{"index": 3}\n', b"[]\n{}\n", b"\xff\n{}\n"]
)
def test_damaged_and_older_answers_are_reported_with_their_file(tmp_path, written):
    (tmp_path / "answers").mkdir()
    file = tmp_path / "answers" / "process-0-of-1.jsonl"
    file.write_bytes(written)
    with pytest.raises(ValueError, match=r"process-0-of-1.jsonl.*: needs another --output"):
        evaluated(tmp_path)
    file.write_text('{"schema": 1}\n{}\n')
    with pytest.raises(ValueError, match="written by another version of trueshift: needs another --output"):
        evaluated(tmp_path)


def test_images_that_were_repaired_are_measured(tmp_path):
    class Flaky(EmbeddedSample):
        broken = (33, 66)

        def __getitem__(self, index):
            if index in self.broken:
                raise OSError("connection reset")
            return super().__getitem__(index)

    source = Flaky()
    for _ in range(2):  # still broken, they are reported as before
        skipped = evaluated(tmp_path, source=source)["data"]["skipped"]
        assert skipped == [{"name": source.name(at), "reason": "OSError: connection reset"} for at in source.broken]
    source.broken = ()
    result = evaluated(tmp_path, source=source)
    assert result["data"]["skipped"] == []
    assert result["measured"] == evaluated()["measured"]


class Renamed(EmbeddedSample):
    def name(self, index):
        return f"other {index}"


@pytest.mark.parametrize(
    ("measure", "change", "message"),
    [
        (evaluated, {"seed": 1}, r"another question.*seed was 0, is 1"),
        (evaluated, {"shifts": 4}, r"another question.*shifts was 3, is 4"),
        (evaluated, {"limit": 8}, r"another question.*12 images, is .*8 images"),
        (evaluated, {"batch_size": 8}, r"another question.*batch_size was 16, is 8"),  # kernels round by it
        (evaluated, {"source": known_models.Reversed()}, r"\(classes was \w+, is \w+\)"),
        (evaluated, {"source": Renamed()}, "was cat 0, is other 0"),
        (segmented, {"model": segmenter(ByPlace(), scenes=replace(SMALL, scale=(64, 24)))}, r"preparation was.*is"),
        (segmented, {"model": segmenter(ByPixel())}, "another question"),
    ],
)
def test_answers_to_another_question_are_refused(tmp_path, measure, change, message):
    measure(tmp_path)
    with pytest.raises(ValueError, match=rf"{message}.*needs another --output"):
        measure(tmp_path, **change)


@pytest.mark.parametrize(
    ("model", "names", "message"),
    [
        (segmenter(ByPixel()), ["circular"], "model is a segmentation model.*needs ade20k-circular"),
        (segmenter(ByPixel()), ["ade20k", "flips"], "circular, flipped compares one answer.*needs ade20k-circular"),
        (subject(Constant()), [], "no protocols: needs at least one"),
        (subject(Constant()), ["ade20k"], "one answer per image.*needs a segmentation model"),
        (subject(Constant()), ["ade20k", "circular"], "ade20k-standard is for segmentation.*or protocols such as"),
    ],
)
def test_models_and_protocols_of_two_kinds_are_refused(model, names, message):
    with pytest.raises(ValueError, match=message):
        run_evaluation(model, Scenes(noise(1)), find_protocols(names), OPTIONS)
    with pytest.raises(ValueError, match="0 shifts: needs at least 2"):
        segmented(shifts=0)


# the command, in one process and in several

PIXEL = ["known_models:ReadsOnePixel", "--data=sample", "--limit=25", "--img-size=32", "--crop-pct=1", "--device=cpu"]
PLACE = ["known_models:ByPlace", "--data", "scenes", "--protocols", "ade20k", "--img-size", "16", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Scenes in one's own layout."""
    for kind in ("images", "masks"):
        (tmp_path / "scenes" / kind).mkdir(parents=True)
    for number, (image, mask) in enumerate(noise(5)):
        image.save(tmp_path / "scenes" / "images" / f"{number}.png")
        Image.fromarray(mask.astype(np.uint8)).save(tmp_path / "scenes" / "masks" / f"{number}.png")
    (tmp_path / "scenes" / "masks" / "3.png").write_bytes(b"torn")
    (tmp_path / "scenes" / "classes.txt").write_text("red\ngreen\n[b]lue\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_prints_a_table_and_writes_everything(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["eval", *PLACE, "--output", "out"]) == 0
    printed = capsys.readouterr().out
    for words in ("mIoU", "mASSC", "IoU by class: red", "[b]lue 0.00", "Skipped: images/3.png", "at most 64 x 16"):
        assert words in printed
    found = json.loads((folder / "out" / "eval.json").read_text())
    assert found["settings"]["batch_size"] == 2
    assert found["measured"]["ade20k-circular"]["consistency"]["images"] == 4
    assert main(["eval", *PLACE, "--output", "again", "--crop-pct", "1"]) == 2
    assert "shown whole images" in capsys.readouterr().err
    assert main(["eval", *PLACE, "--output", "again", "--data", "scenes/classes.txt"]) == 2


TOGETHER = """
import os, sys
from torch.multiprocessing import start_processes
from trueshift.cli import main

def work(rank, words):
    os.environ |= {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "{processes}"}}
    assert main(words) == 0

os.chdir("{folder}")
sys.path.insert(0, "{models}")
os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "OMP_NUM_THREADS": "1"}}
start_processes(work, ({words},), nprocs={processes}, start_method="fork")
"""


def evaluated_by(processes, folder, output, *words):
    """What ``trueshift eval`` writes in several processes, with the environment that torchrun gives them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["eval", *words, "--output", output]
    models = Path(known_models.__file__).parent
    run_unchecked(TOGETHER.format(processes=processes, folder=folder, models=models, port=port, words=words))
    return json.loads((folder / output / "eval.json").read_text())


def test_processes_share_the_images_and_the_result_is_that_of_one(folder):
    words = [*PIXEL, "--protocols", "circular"]
    two = evaluated_by(2, folder, "two", *words)
    assert two["processes"] == 2
    assert two["measured"]["circular"]["consistency"]["images"] == 25
    for output in ("one", "two"):  # from the beginning, and resumed with another number of processes
        assert main(["eval", *words, "--output", output]) == 0
        one = json.loads((folder / output / "eval.json").read_text())
        assert one["processes"] == 1
        assert one["measured"] == two["measured"]
