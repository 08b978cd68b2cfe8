"""``trueshift segment``: images in, label files and overlays out, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from trueshift import UperNet
from trueshift.cli import main
from trueshift.data.masks import Labels, decode_mask
from trueshift.data.transforms import ScenePreparation
from trueshift.eval.models.eval_model import EvalOptions, make_eval_model
from trueshift.report.images import class_colours, legend, mask_png, overlay, shares
from trueshift.segment_command import usual_sliding

NAMES = ["red", "green", "blue"]


class StrongestColour(nn.Module):
    """Says which of red, green and blue is the largest."""

    size_multiple = (8, 8)
    num_classes = 3
    dense = True

    def __init__(self):
        super().__init__()
        scene = ScenePreparation((64, 32), (8, 8), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        self.pretrained_cfg = {"label_names": NAMES, "scene": scene.to_dict(), "crop": [24, 16]}
        self.shown = []

    def forward(self, images):
        assert not images.shape[2] % 8
        assert not images.shape[3] % 8
        self.shown.append(tuple(images.shape[2:]))
        return images


@pytest.fixture
def colours(monkeypatch):
    """The model that the command finds under any name."""
    network = StrongestColour()
    monkeypatch.setattr(
        "trueshift.eval.load_eval_model",
        lambda name, options: make_eval_model(network, name, "none", options),
    )
    return network


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def stripes(path, size=(60, 40), order=(0, 1, 2)):
    """Three upright stripes, one of each colour; gives their labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = np.array(order)[np.arange(size[0]) * 3 // size[0]][None].repeat(size[1], 0)
    Image.fromarray((np.eye(3)[labels] * 255).astype(np.uint8)).save(path)
    return labels


def read(path, labels=Labels.numbered(3)):  # noqa: B008
    return decode_mask(path.read_bytes(), str(path), labels)


def test_label_files_and_overlays_are_written_at_the_size_of_the_image(tmp_path, colours, capsys):
    deep = stripes(tmp_path / "in" / "deep" / "b.png", (33, 47), (2, 1, 0))
    expected = {"a": stripes(tmp_path / "a.png"), "deep_b": deep}
    assert main(["segment", "a.png", "in", "--model", "any", "--output", "out"]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 4
    for name, labels in expected.items():
        found = read(tmp_path / "out" / f"{name}_mask.png")
        assert found.shape == labels.shape
        # edges may move by the rounding of a resized picture
        assert (found == labels).mean() > 0.9
        with Image.open(tmp_path / "out" / f"{name}_overlay.png") as image:
            assert image.width == labels.shape[1]
            assert image.height > labels.shape[0]
        with Image.open(tmp_path / "out" / f"{name}_mask.png") as image:
            assert image.mode == "P"
    message = capsys.readouterr().out
    assert "a.png (40 x 60): " in message
    assert "red 33.3%" in message
    assert "2 of 2 images: out" in message


def test_windows_slide_by_the_crop_of_the_training(tmp_path, colours):
    labels = stripes(tmp_path / "a.png", (64, 32))
    for options, shown in (
        (["--sliding"], (24, 16)),
        ([], (32, 64)),
        (["--sliding", "--window", "16", "32", "--stride", "16", "32"], (16, 32)),
    ):
        colours.shown.clear()
        assert main(["segment", "a.png", "--model", "any", *options, "--output", "out", "--overwrite"]) == 0
        assert set(colours.shown) == {shown}
        assert options or len(colours.shown) == 1
        assert np.array_equal(read(tmp_path / "out" / "a_mask.png"), labels)


def test_images_without_an_answer_are_reported_and_the_others_done(tmp_path, colours, capsys, monkeypatch):
    for name, size in (("a", (60, 40)), ("c", (60, 40)), ("e", (24, 32))):
        stripes(tmp_path / "in" / f"{name}.png", size)
    (tmp_path / "in" / "b.png").write_bytes(b"no image")
    (tmp_path / "in" / "d.png").write_bytes((tmp_path / "in" / "a.png").read_bytes()[:-30])
    forward = colours.forward
    monkeypatch.setattr(colours, "forward", lambda images: forward(images) * (torch.nan if images.shape[3] < 40 else 1))
    for _ in range(2):  # results of the last time are not images
        assert main(["segment", "in", "--model", "any", "--output", "in/out", "--overwrite"]) == 1
        said = capsys.readouterr()
        assert [line.partition(" could not")[0][-5:] for line in said.err.splitlines()] == ["b.png", "d.png", "e.png"]
        assert "e.png could not be labelled: the model's logits are not numbers (NaN)" in said.err
        assert "2 of 5 images" in said.out
        assert {file.name[0] for file in (tmp_path / "in" / "out").iterdir()} == {"a", "c"}


def test_files_are_not_written_over(tmp_path, colours, capsys):
    stripes(tmp_path / "a.png")
    (tmp_path / "a_mask.png").write_text("drawn by hand")
    assert main(["segment", "a.png", "--model", "any", "--output", "."]) == 2
    assert "a_mask.png is there already: needs --overwrite, or another --output" in capsys.readouterr().err
    assert (tmp_path / "a_mask.png").read_text() == "drawn by hand"
    assert not (tmp_path / "a_overlay.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.png"], "there is no image at nowhere.png: needs an image or a folder of them"),
        (["empty"], "empty has no images: needs files ending in .jpg"),
        (["in", "--output", "in"], "all images of in are in the output in: needs another --output"),
        (["a.png", "in"], "a.png and in/a.png would both become a_mask.png: needs different names"),
        (["a.png", "--output", "a.png"], "a.png is a file: needs a folder"),
        (["a.png", "--window", "8", "8"], "needs --sliding as well"),
        (["a.png", "--sliding", "--window", "8", "8", "--stride", "9", "8"], "needs strides from 1 to the window"),
    ],
)
def test_what_a_user_can_put_right_is_reported_in_a_line(tmp_path, colours, capsys, arguments, message):
    stripes(tmp_path / "a.png")
    stripes(tmp_path / "in" / "a.png")
    (tmp_path / "empty").mkdir()
    assert main(["segment", *arguments, "--model", "any"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("trueshift: ")
    assert not list(tmp_path.rglob("*_mask.png"))


def test_a_network_from_its_folder(tmp_path, capsys):
    torch.manual_seed(0)
    network = UperNet("a_swin_mini", 3, channels=8, auxiliary=False).eval()
    scene = ScenePreparation((64, 32), network.size_multiple)
    network.pretrained_cfg = {**network.pretrained_cfg, "label_names": NAMES, "scene": scene.to_dict()}
    network.save_pretrained(tmp_path / "net")
    stripes(tmp_path / "a.png", (50, 30))
    assert main(["segment", "a.png", "--model", "net", "--output", "out"]) == 0
    # the same as by hand
    with Image.open("a.png") as image, torch.inference_mode():
        logits = network(scene.normalise(scene.canvas(image))[None])
    logits = nn.functional.interpolate(logits, (30, 50), mode="bilinear", align_corners=False)
    assert np.array_equal(read(tmp_path / "out" / "a_mask.png"), logits[0].argmax(0))
    assert main(["segment", "a.png", "--model", "swin_mini", "--output", "other"]) == 2
    assert "swin_mini gives one answer per image: needs a segmentation model" in capsys.readouterr().err


# the parts


def test_the_default_window_is_the_crop_or_the_shortest_side():
    network = StrongestColour()
    subject = make_eval_model(network, "any", "none", EvalOptions(), dense=True)
    assert usual_sliding(subject) == ((24, 16), (16, 10))
    assert usual_sliding(subject, (9, 30)) == ((9, 30), (6, 20))
    del network.pretrained_cfg["crop"]
    assert usual_sliding(subject) == ((32, 32), (21, 21))


@pytest.mark.parametrize(("classes", "mode"), [(2, "P"), (255, "P"), (256, "I;16"), (3000, "I;16")])
def test_label_files_are_read_back_as_they_were(tmp_path, classes, mode):
    labels = np.random.default_rng(0).integers(0, classes, (20, 30))
    labels[0, 0] = classes - 1
    (tmp_path / "a.png").write_bytes(mask_png(labels, classes))
    with Image.open("a.png") as image:
        assert image.mode == mode
        if mode == "P":
            shown = np.asarray(image.convert("RGB"))
            assert np.array_equal(shown, class_colours()[labels])
    assert np.array_equal(read(tmp_path / "a.png", Labels.numbered(classes, ignored=(65535,))), labels)
    for wrong in (-1, classes):
        with pytest.raises(ValueError, match=rf"labels from .* of {classes} classes: needs 0 to the number of classes"):
            mask_png(np.array([[0, wrong]]), classes)


def test_colours_of_classes_are_fixed_and_far_apart():
    colours = class_colours().astype(int)
    assert colours[:2].tolist() == [[0x44, 0x77, 0xAA], [0xEE, 0x66, 0x77]]
    distance = np.sqrt(((colours[:, None] - colours) ** 2).sum(-1)) + 1000 * np.eye(256)
    for classes, least in ((19, 60), (150, 35), (256, 25)):
        assert distance[:classes, :classes].min() > least


def test_the_overlay_is_a_mixture_above_its_legend():
    picture = Image.new("RGB", (40, 20), (200, 100, 0))
    labels = np.zeros((20, 40), int)
    labels[:, 30:] = 2
    assert shares(labels) == [(0, 0.75), (2, 0.25)]
    found = np.asarray(overlay(picture, labels, NAMES)).astype(int)
    for column, label in ((5, 0), (35, 2)):
        expected = (np.array([200, 100, 0]) + class_colours()[label]) / 2
        assert np.abs(found[10, column] - expected).max() <= 0.5
    below = {tuple(colour) for colour in found[20:].reshape(-1, 3).tolist()}
    assert tuple(class_colours()[0].tolist()) in below
    assert tuple(class_colours()[2].tolist()) in below
    assert tuple(class_colours()[1].tolist()) not in below


def test_a_legend_of_many_long_or_foreign_names():
    names = [f"Straße {number} 道路 {'long ' * 20}" for number in range(40)]
    for width in (1, 50, 2000):
        strip = legend(width, list(range(40)), names)
        assert strip.width == width
    assert legend(500, [], []).height > 0
