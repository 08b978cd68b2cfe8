"""The table of networks while the camera moves, from small random networks to its rows."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import trueshift
from benchmarks.accuracy import motion
from benchmarks.bench import TABLES
from benchmarks.common import record

ROOT = Path(__file__).resolve().parents[1]
SMALL = {"patch_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1), "num_classes": 3}


def table(where):
    """The table of the views of some images."""
    written = TABLES["motion_cifar10"]
    return replace(written, keys=written.keys | {"rows": f"motion.rows({where!r})"}).render()


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measure networks of some sizes on three images of their own, in a folder of results without others."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    generator = torch.Generator().manual_seed(0)
    for label in "abc":
        image = torch.rand(64, 64, 3, generator=generator).mul(255).byte().numpy()
        (tmp_path / "squares" / label).mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / "squares" / label / "0.png")

    def measure(networks, *words):
        given = []
        for name, (model, size) in networks.items():
            torch.manual_seed(0)
            folder = tmp_path / f"{model}_{size}_{len(given)}"
            trueshift.create_model(model, img_size=size, **SMALL).save_pretrained(folder)
            given.append(f"{name}={folder}")
        program = str(ROOT / "benchmarks/accuracy/motion.py")
        monkeypatch.setattr(sys, "argv", [program, "--networks", *given, "--limit", "1", *words])
        motion.main()

    measure.folder = tmp_path
    return measure


def test_sizes_classes_and_rows_follow_from_the_networks(measured, monkeypatch):
    seen = set()
    centre = motion.CenterCrop.forward
    monkeypatch.setattr(
        motion.CenterCrop,
        "forward",
        lambda self, view: (seen.add((*view.shape[2:], *self.size)), centre(self, view))[1],
    )
    networks = {"ordinary": ("swin_mini", 64), "ordinary, shifts": ("swin_mini", 64), "adaptive": ("a_swin_mini", 64)}
    measured(networks, "--title", "A net, flips only", "--data", str(measured.folder / "squares"))
    assert seen == {(80, 80, 64, 64), (64, 64, 64, 64)}
    result = record.load("motion_squares_a_net_flips_only")["result"]
    methods = result["methods"]
    assert list(methods) == [
        *networks,
        "adaptive, 4 grids",
        *(f"{name}, steady" for name in networks),
        *(f"{name}, steady, 2 crops" for name in networks),
        "adaptive, 4 grids, steady",
        "ordinary, video",
    ]
    for name in ("adaptive", "adaptive, 4 grids"):
        assert methods[name]["measured"]["circular"]["bit_exact"]["rate"] == 1
    assert result["data"].startswith("part of")  # of a folder, which is sorted by class
    rows = table("squares").splitlines()
    head = ["network", "passes", "Top-1", "C-Cons.", "crop 1", "crop 2", "crop 4", "crop 8", "flicker"]
    assert rows[0] == f"| {' | '.join([*head, 'subpixel', 'bilinear', 'JPEG', 'noise'])} |"
    shown = [method for method in methods if not method.startswith("ordinary, shifts,")]  # in no wrappers
    assert len(shown) == len(methods) - 2
    assert [row.split(" | ")[0] for row in rows[2 : 2 + len(shown)]] == [f"| A net, flips only, {x}" for x in shown]
    assert "-" not in rows[2].split(" | ")[1:]  # Top-1 too: the classes are the network's
    assert rows[-1].startswith("1 images; ")


def test_photographs_have_larger_views_and_longer_paths(measured, monkeypatch):
    seen = []
    frames = motion.frame_by_frame
    monkeypatch.setattr(motion, "frame_by_frame", lambda *given: (seen.append(given[2:4]), frames(*given))[1])
    measured({"ordinary": ("swin_mini", 32)}, "--photos", str(measured.folder / "squares"))
    ((view, path),) = seen
    assert (view.size, view.resized(64, 64), path) == ((48, 48), (80, 80), "path-32")
    assert "| Swin-mini, ordinary, video | 1 | - |" in table("photos")


def test_top1_on_the_centre_and_on_the_mean_over_crops(measured, monkeypatch):
    seen = []

    class SecondClass(nn.Module):  # right for one of the three images
        def forward(self, image):
            seen.append(tuple(image.shape))
            return torch.tensor([0.0, 1.0, 0.0]).expand(len(image), 3)

    found = motion.load_networks
    replaced = lambda words: {key: motion.beside(each, SecondClass()) for key, each in found(words).items()}  # noqa: E731
    monkeypatch.setattr(motion, "load_networks", replaced)
    words = "--data", str(measured.folder / "squares"), "--crops", "1", "2", "--limit", "3"
    measured({"ordinary": ("swin_mini", 32)}, *words)
    assert {tuple(size) for _, *size in seen} == {(3, 32, 32)}
    assert [views // seen[0][0] for views, *_ in seen] == [1, 1, 2]
    assert record.load("steady_crops_swin")["result"] == {
        "images": 3,
        "top1": dict.fromkeys(["centre", "1", "2"], 1 / 3),
    }


def test_a_table_of_nothing_says_so(measured):
    assert "not run yet" in table("nothing")


def test_networks_have_names_and_one_size(measured):
    with pytest.raises(SystemExit, match=r"swin_mini: needs NAME=MODEL"):
        motion.load_networks(["swin_mini"])
    with pytest.raises(SystemExit, match=r"\(32, 32\), \(64, 64\).*one size"):
        measured(
            {"ordinary": ("swin_mini", 32), "adaptive": ("a_swin_mini", 64)}, "--data", str(measured.folder / "squares")
        )
