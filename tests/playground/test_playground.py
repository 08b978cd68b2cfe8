"""``trueshift playground``: what is in the page, that its graphs are the networks, and what is refused."""

import base64
import gzip
import json
import os
import re
import shutil
from functools import partial

import pytest
import torch

from trueshift.cli import main
from trueshift.data import EmbeddedSample, Preparation
from trueshift.models.bundled_weights import sha256_of
from trueshift.models.registry import create_model
from trueshift.playground import EVERY, FAMILIES, GRAPHS, network_names, weights_of

NETWORKS = [name for family in FAMILIES for name in network_names(family)]
DEFAULT = network_names("swin")


@pytest.fixture(autouse=True)
def _packed_quickly(monkeypatch):
    monkeypatch.setattr(gzip, "compress", partial(gzip.compress, compresslevel=1))


def held(text):
    """What the scripts of a page hold, by name and part, as it was before it was packed."""
    scripts = re.findall(r'\(self\.held \?\?= \{\}\)\["(\w+)"\] = (\{.*?\});', text)
    unpacked = {name: json.loads(parts).items() for name, parts in scripts}
    return {
        name: {key: gzip.decompress(base64.b64decode(part)) for key, part in parts} for name, parts in unpacked.items()
    }


def test_one_file_that_holds_everything_and_is_opened(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.chdir(tmp_path)
    assert main(["playground"]) == 0
    page = tmp_path / "playground.html"
    assert list(tmp_path.iterdir()) == [page]
    assert opened == [page.as_uri()]
    assert str(page) in capsys.readouterr().out.replace("\n", "")
    text = page.read_text()
    parts = held(text)
    assert list(parts) == ["runtime", *DEFAULT]
    assert parts["runtime"]["wasm"].startswith(b"\0asm")
    assert b"MIT License" in parts["runtime"]["notices"]
    for name in DEFAULT:
        assert parts[name]["weights"] == weights_of(name).read_bytes()
    # nothing is asked of anyone: no address, no request, no file beside it
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|importScripts|url\(|@import", text)
    assert re.findall(r'\b(?:src|href)="([^"]*)"', text) == ["data:,"]


def test_a_folder_with_all_families(tmp_path, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda *_: pytest.fail("opened in spite of --no-open"))
    site = tmp_path / "new" / "site"
    site.mkdir(parents=True)
    (site / "index.html").write_text("<title>trueshift playground</title>")  # an earlier one, which is replaced
    assert main(["playground", "--family", "cvt", "--output", str(site), "--no-open"]) == 0
    assert {path.name for path in (site / "data").iterdir()} == {f"{name}.js" for name in ["runtime", *NETWORKS]}
    text = (site / "index.html").read_text()
    assert held(text) == {}
    assert '"family": "cvt"' in text
    assert set(held((site / "data" / "a_cvt_mini.js").read_text())["a_cvt_mini"]) == {"graph", "weights"}


def test_what_cannot_be_is_refused_in_a_line(tmp_path, capsys):
    other = tmp_path / "other.html"
    other.write_text("<title>my own page</title>")
    (tmp_path / "site").mkdir()
    shutil.copy(other, tmp_path / "site" / "index.html")
    (tmp_path / "taken").write_text("")
    cases = [
        (["--family", "resnet"], "family 'resnet': needs one of swin, swinv2, cvt, mvitv2"),
        (["--output", str(other)], "other.html is not a playground: choose another place"),
        (["--output", str(tmp_path / "site")], "index.html is not a playground: choose another place"),
        (["--output", str(tmp_path / "taken")], "taken is a file: needs a folder to write to"),
        (["--output", str(tmp_path / "taken" / "page.html")], "taken is a file: needs a folder to write to"),
    ]
    if os.geteuid():  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        cases.append((["--output", str(tmp_path / "closed" / "page.html")], "cannot be written to"))
    for options, message in cases:
        assert main(["playground", "--no-open", *options]) == 2
        error = capsys.readouterr().err
        assert error.startswith("trueshift: ")
        assert message in error
    assert other.read_text() == "<title>my own page</title>"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_is_bound_to_the_weights_that_are_shipped(name):
    onnx = pytest.importorskip("onnx")
    graph = onnx.load_model_from_string(gzip.decompress((GRAPHS / f"{name}.onnx.gz").read_bytes()))
    assert {each.key: each.value for each in graph.metadata_props}["weights_sha256"] == sha256_of(weights_of(name))
    outside = [tensor for tensor in graph.graph.initializer if tensor.data_location]
    inside = sum(len(tensor.raw_data) for tensor in graph.graph.initializer if tensor not in outside)
    # the weights are not stored twice
    assert sum(torch.Size(tensor.dims).numel() for tensor in outside) > 0.95 * weights_of(name).stat().st_size / 2
    assert inside < 150_000


def images_of(model):
    source, preparation = EmbeddedSample(), Preparation.from_config(model.pretrained_cfg)
    return torch.stack([preparation.normalise(preparation.canvas(source[at].image)) for at in range(0, 400, EVERY)])


def session_of(graph, name, folder):
    runtime = pytest.importorskip("onnxruntime")
    (folder / "graph.onnx").write_bytes(gzip.decompress(graph))
    shutil.copy(weights_of(name), folder / "weights")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(folder / "graph.onnx"), options, providers=["CPUExecutionProvider"])
    return lambda image: torch.from_numpy(session.run(None, {"image": image.contiguous().numpy()})[0])


@pytest.mark.parametrize(
    "name", [name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]
)
@torch.inference_mode()
def test_a_graph_answers_as_its_network_and_keeps_every_bit(name, tmp_path):
    model = create_model(name, pretrained=True).eval()
    images = images_of(model)
    run = session_of((GRAPHS / f"{name}.onnx.gz").read_bytes(), name, tmp_path)
    found = torch.cat([run(image) for image in images.split(1)])
    torch.testing.assert_close(found, model(images), rtol=0, atol=1e-4)
    shifts = [(1, 0), (0, 1), (3, 5), (16, 16), (31, 30)]
    moved = [run(images[3:4].roll(shift, (2, 3))) for shift in shifts]
    same = [torch.equal(each, found[3:4]) for each in moved]
    assert all(same) if name.startswith("a_") else not any(same)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFAULT)
def test_graphs_written_again_answer_the_same(run_unchecked, name, tmp_path):
    program = "from benchmarks.release.playground_graphs import graph_of\nfrom pathlib import Path\n"
    run_unchecked(f"{program}Path({str(tmp_path / 'again.gz')!r}).write_bytes(graph_of({name!r}))")
    shipped, again = tmp_path / "shipped", tmp_path / "again"
    shipped.mkdir()
    again.mkdir()
    images = images_of(create_model(name, pretrained=True))[:2].split(1)
    first = session_of((GRAPHS / f"{name}.onnx.gz").read_bytes(), name, shipped)
    second = session_of((tmp_path / "again.gz").read_bytes(), name, again)
    assert all(torch.equal(first(image), second(image)) for image in images)
