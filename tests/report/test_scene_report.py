"""The report on segmentation models: everything is there, drawn, named and escaped."""

import base64
import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from report_samples import NastyScenes, Reader, audit_of_segmenters
from small_segmenters import SMALL, ByPixel, ByPlace, Scenes, noise, segmenter

from trueshift.eval import AuditOptions, run_audit
from trueshift.report.images import change_image, flip_images, label_image
from trueshift.report.page import write_audit
from trueshift.report.wording import remarks, table_rows, verdict


@pytest.fixture(scope="module")
def source():
    return NastyScenes()


@pytest.fixture(scope="module")
def written(tmp_path_factory, source):
    found = audit_of_segmenters(source)
    return found, write_audit(found, source, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(written):
    reader = Reader()
    reader.feed(written[1].read_text())
    return reader


def test_names_are_escaped_and_the_page_needs_nothing_else(written, page):
    assert not {"script", "b"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "&lt;script&gt;alert(1)" in written[1].read_text()
    addresses = [value for _, name, value in page.attributes if name in ("src", "srcset", "href")]
    assert all(address.startswith("data:") for address in addresses)
    assert "torn &lt;b&gt;" in written[1].read_text()


def test_every_picture_is_one_and_says_what_it_shows(written, page):
    found, _ = written
    pictures = [value for tag, name, value in page.attributes if (tag, name) == ("img", "src")]
    assert len(pictures) == 2 * (2 + 2 * 3) + sum(len(model["worst_images"]) for model in found["models"])
    for picture in pictures:
        assert min(Image.open(io.BytesIO(base64.b64decode(picture.split(",", 1)[1]))).size) > 0
    assert len([1 for tag, name, value in page.attributes if (tag, name) == ("img", "alt") and value]) == len(pictures)


def test_the_files_are_there(written):
    found, path = written
    assert json.loads((path.parent / "audit.json").read_text())["models"][0]["flips"] == found["models"][0]["flips"]
    rows = list(csv.reader((path.parent / "images.csv").read_text().splitlines()))
    assert len(rows) == 4
    assert [float(row[3]) for row in rows[1:]] == [1, 1, 1]
    assert [file.name for file in (path.parent / "figures").iterdir()] == ["flips.png"]
    with Image.open(path.parent / "figures" / "flips.png") as figure:
        assert min(figure.size) > 300


def test_what_must_be_known_is_said(written):
    found, path = written
    text = path.read_text()
    for words in ("mIoU", "mASCC", "mASSC", "pixel accuracy", "1 skipped", "whole images of at most 64 x 16"):
        assert words in text
    for protocol in found["protocols"].values():
        assert protocol["description"] in text
    kept = "keeps the label of every pixel of all 3 images"
    assert f"{kept} under every circular shift tried, bit for bit" in verdict(found)
    assert "onerror=alert(1)> changes the label of" in verdict(found)
    assert any("Skipped" in remark for remark in remarks(found))


def test_an_audit_that_was_interrupted_at_once_still_ends_in_a_report(source, tmp_path):
    def interrupted(what, done, total):
        raise KeyboardInterrupt

    found = run_audit([segmenter(ByPlace())], source, AuditOptions(shifts=2), progress=interrupted)
    assert "Interrupted: 1 of 4" in write_audit(found, source, tmp_path).read_text()


def test_nothing_measured_is_said(tmp_path):
    source = Scenes([(OSError("torn"), None)])
    found = run_audit([segmenter(ByPlace())], source, AuditOptions(shifts=2))
    assert "Nothing was measured" in write_audit(found, source, tmp_path).read_text()


def test_pictures_of_a_flip_show_it(written, source):
    found, _ = written
    flip = max(found["models"][0]["flips"], key=lambda flip: flip["flipped"])
    drawn = flip_images(flip, source)
    assert {picture.shape for picture in drawn.values()} == {(16, 24, 3)}
    down, right = flip["shift"]
    assert (np.roll(drawn["image"], (down, right), (0, 1)) == drawn["shifted"]).all()
    assert (drawn["before"][0, 0] != drawn["before"][-1, 0]).any()
    standard = flip_images({**flip, "wraps": False, "shift": [2, -3]}, source)["shifted"]
    assert (standard[:2] == standard[0, 0]).all()
    assert (standard[2:, :-3] == drawn["image"][:-2, 3:]).all()


def test_changed_pixels_are_marked_and_boxed():
    changed = np.zeros((20, 30), bool)
    changed[5:9, 10:14] = True
    picture = change_image(np.zeros((20, 30, 3), np.uint8), changed, [{"box": [5, 10, 9, 14]}])
    marked, boxed, pale = picture[6, 11], picture[4, 9], picture[0, 0]
    assert (picture[changed] == marked).all()
    assert (picture[4, 9:15] == boxed).all()
    assert (picture[4:10, 14] == boxed).all()
    assert len({tuple(colour) for colour in (marked, boxed, pale)}) == 3


def test_more_classes_than_colours_are_drawn():
    assert label_image(np.array([[0, 3, 256, 70000, -1]])).shape == (1, 5, 3)


def test_padded_inputs_have_an_iou_of_their_own():
    padded = replace(SMALL, fit="pad")
    found = run_audit([segmenter(ByPixel(), scenes=padded)], Scenes(noise(2, (13, 21))), AuditOptions(shifts=2))
    titles = [title for title, _, _ in table_rows(found)]
    assert titles[0] == "mIoU"
    assert titles[-2:] == ["mIoU, input of mASSC", "mASSC"]
