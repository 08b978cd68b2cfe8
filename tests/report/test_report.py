"""The report: everything is there, drawn, named and escaped."""

import base64
import csv
import io
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import assert_readable, needs_browser, open_browser
from known_models import SMALL, ByPixel, ByPlace, Constant, ReadsOnePixel, Scenes, noise, segmenter, subject
from PIL import Image
from rich.console import Console

from trueshift.data import EmbeddedSample
from trueshift.eval import AuditOptions, find_protocols, run_audit
from trueshift.report.console import print_audit
from trueshift.report.images import change_image, flip_images, label_image
from trueshift.report.page import write_audit
from trueshift.report.wording import audit_remarks, field_rows, number, percent, table_rows, verdict


class Reader(HTMLParser):
    """All tags and attributes of a page."""

    def __init__(self, found, path):
        super().__init__()
        self.found, self.text, self.tags, self.attributes = found, path.read_text(), [], []
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]


every_page = pytest.mark.parametrize("which", ["written", "written_scenes", "written_fields"])


@every_page
def test_names_are_escaped_and_the_page_needs_nothing_else(request, which):
    page = Reader(*request.getfixturevalue(which))
    assert not {"script", "b"} & set(page.tags)  # "b" from "torn <b>"
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "&lt;script&gt;alert(1)" in page.text
    assert "torn &lt;b&gt;" in page.text
    addresses = [value for _, name, value in page.attributes if name in ("src", "srcset", "href")]
    assert addresses
    assert all(address.startswith("data:") for address in addresses)


@every_page
def test_every_image_is_one_and_says_what_it_shows(request, which):
    page = Reader(*request.getfixturevalue(which))
    images = [value for tag, name, value in page.attributes if (tag, name) in (("img", "src"), ("source", "srcset"))]
    worst = sum(len(model.get("worst_images", ())) for model in page.found["models"])
    # flip maps and photographs; animation, maps, and spectra in light and dark
    expected = {"written_scenes": 2 * (2 + 2 * 3) + worst, "written_fields": 1 + 2 * 2 * 4 + 2 * 2}
    assert len(images) == expected.get(which, len(images)) > 15
    for image in images:
        head, data = image.split(",", 1)
        assert head == f"data:image/{'gif' if data.startswith('R0lGOD') else 'png'};base64"
        assert min(Image.open(io.BytesIO(base64.b64decode(data))).size) > 0
    described = [1 for tag, name, value in page.attributes if (tag, name) == ("img", "alt") and value]
    assert page.tags.count("img") == len(described)


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("written", ["random initialisation", "C-Cons."]),
        ("written_scenes", ["mIoU", "mASCC", "mASSC", "pixel accuracy", "whole images of at most 64 x 16"]),
    ],
)
def test_what_must_be_known_is_said(request, which, words):
    page = Reader(*request.getfixturevalue(which))
    for word in (*words, "1 skipped", "±"):
        assert word in page.text
    for protocol in page.found["protocols"].values():
        assert protocol["description"].replace("'", "&#39;") in page.text
    assert any("Skipped" in remark for remark in audit_remarks(page.found))


@pytest.mark.parametrize(
    ("which", "images", "figures"),
    [("written", 6, {"magnitudes", "planes", "tokens"}), ("written_scenes", 3, {"flips"})],
)
def test_the_files_are_there(request, which, images, figures):
    found, path = request.getfixturevalue(which)
    assert json.loads((path.parent / "audit.json").read_text()) == json.loads(json.dumps(found))
    _, *rows = csv.reader((path.parent / "images.csv").read_text().splitlines())
    assert [float(row[3]) for row in rows] == [1] * images
    assert found["data"]["images"] == images
    assert {file.stem for file in (path.parent / "figures").iterdir()} == figures
    for file in (path.parent / "figures").iterdir():
        with Image.open(file) as figure:
            assert min(figure.size) > 300


def test_the_page_of_networks_for_fields(written_fields):
    page = Reader(*written_fields)
    text = re.sub(r"\s+", " ", page.text)
    ordinary, adaptive = (model["measured"]["shift_error"] for model in page.found["models"])
    assert max(adaptive.values()) == 0 < ordinary["1"] < ordinary["10"]
    assert f"differs by up to {number(ordinary['10'])} deviations when the state is rolled, over 10 steps" in text
    assert "moves with the state under every shift tried, bit for bit, over 10 steps" in text
    assert "rollouts of 1, 10 steps were measured, not those of 50" in text
    assert "rolled by 9 rows and 17 columns" in text
    assert text.count('<span class="good">at most 0</span>') == text.count('<span class="bad">at most ') == 2
    assert len([row for row in field_rows(page.found) if row[0] in text]) == 8
    narrow = {**page.found, "settings": {**page.found["settings"], "circular": "width"}}
    assert "2 random shifts of columns" in field_rows(narrow)[4][1]


def test_default_stands_beside_adapted(written):
    found, path = written
    ordinary, adapted = found["models"]
    assert adapted["name"] == "swin_tiny_patch4_window7_224, adapted"
    assert adapted["measured"]["circular"]["bit_exact"]["rate"] == 1
    assert all(stage["largest"] == 0 for entry in adapted["tokens"] for stage in entry["stages"])
    assert all(stage["largest"] > 0 for entry in ordinary["tokens"] for stage in entry["stages"])
    assert all(plane["different_answers"] == 1 for plane in adapted["planes"])
    text = re.sub(r"\s+", " ", path.read_text())
    assert "under every circular shift tried, bit for bit" in text


def test_a_rate_below_one_is_never_shown_as_a_hundred():
    assert percent({"rate": 0.999999}) == "99.99\N{NO-BREAK SPACE}%"
    assert percent({"rate": 1.0}) == "100.00\N{NO-BREAK SPACE}%"
    assert percent(0.999999) == percent({"rate": 0.999999})
    assert percent(None) == "n/a"
    assert (number(0.0), number(1e-7), number(None)) == ("0", "1e-07", "n/a")


def test_the_table_in_a_narrow_terminal_has_whole_names(written):
    file = io.StringIO()
    print_audit(Console(file=file, width=60), written[0])
    lines = file.getvalue().splitlines()
    head = lines[: next(at for at, line in enumerate(lines) if "Top-1" in line)]
    columns = zip(*(line.strip("┃").split("┃") for line in head if "┃" in line), strict=True)
    names = ["".join(part.strip() for part in column) for column in columns]
    assert names[1].startswith("swin_tiny_patch4_window7_224random weights")
    assert names[2].startswith("swin_tiny_patch4_window7_224,adaptedrandom weights")


@pytest.mark.parametrize(
    ("protocol", "every", "each"),
    [
        ("circular", "under every circular shift tried", "under circular shifts"),
        ("cifar-standard", "under every standard shift tried", "under standard shifts"),
        ("path-32", "in every crop tried", "from crop to crop"),
        ("subpixel", "in every crop tried", "from crop to crop"),
        ("jpeg", "in every version tried", "from version to version"),
    ],
)
def test_the_verdict_counts_images_and_names_what_was_tried(protocol, every, each):
    models = [subject(Constant(), "one"), subject(ReadsOnePixel(), "two")]
    options = AuditOptions(limit=12, examples=0)
    found = run_audit(models, EmbeddedSample(), options, find_protocols([protocol]))
    changed = sum(agreed < 1 for _, agreed in found["models"][1]["consistency_of_images"])
    two = f"changes its answer for {changed} of 12 images {each}" if changed else f"keeps its .* images {every}"
    assert re.fullmatch(rf"one keeps its answer for all 12 images {every}, bit for bit; two {two}.*\.", verdict(found))


def test_real_motion_comes_first(written):
    found, path = written
    sentence, rows = verdict(found), table_rows(found)
    assert sentence.startswith("While a crop moves over the image, the answer changes from frame to frame: ")
    assert rows[0][0] == "path of 32 px, answer changes"
    rates = [model["measured"]["path-32"]["flicker"] for model in found["models"]]
    assert all(percent(rate) in sentence for rate in rates)
    assert [row[0] for row in rows[3:5]] == ["crops, 1 px", "crops, 4 px"]
    assert percent(rates[0]) in path.read_text()


def test_the_verdict_on_pixels(written_scenes):
    sentence = verdict(written_scenes[0])
    assert "keeps the label of every pixel of all 3 images under every circular shift tried, bit for bit" in sentence
    assert "onerror=alert(1)> changes the label of" in sentence


def test_an_audit_that_read_nothing_still_ends_in_a_report(tmp_path):
    broken = Scenes([(OSError("torn"), None)])
    for model in (segmenter(ByPlace()), subject(Constant())):
        found = run_audit([model], broken, AuditOptions(shifts=2))
        page = write_audit(found, broken, tmp_path).read_text()
        assert {value for each in found["models"][0]["measured"].values() for value in each.values()} == {None}
        assert "Nothing was measured" in page
        assert "scene 0" in page


def test_images_of_a_flip_show_it(written_scenes, scenes):
    flip = max(written_scenes[0]["models"][0]["flips"], key=lambda flip: flip["flipped"])
    drawn = flip_images(flip, scenes)
    assert {picture.shape for picture in drawn.values()} == {(16, 24, 3)}
    down, right = flip["shift"]
    assert (np.roll(drawn["image"], (down, right), (0, 1)) == drawn["shifted"]).all()
    assert (drawn["before"][0, 0] != drawn["before"][-1, 0]).any()
    assert label_image(np.array([[0, 3, 256, 70000, -1]])).shape == (1, 5, 3)  # more classes than colours
    standard = flip_images({**flip, "wraps": False, "shift": [2, -3]}, scenes)["shifted"]
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


def test_protocols_against_the_unshifted_image_are_shown():
    """All four magnitudes are a curve of the page; one of them, or all alone, must be in the table."""
    settings = AuditOptions(limit=3, examples=0)
    for names in (["magnitude"], ["circular", "magnitude-8"], ["circular", "magnitude"]):
        found = run_audit([subject(Constant())], EmbeddedSample(), settings, find_protocols(names))
        said = [meaning for _, meaning, _ in table_rows(found) if meaning.endswith("shifted against unshifted")]
        assert len(said) == {("magnitude",): 4, ("circular", "magnitude-8"): 1}.get(tuple(names), 0)


def test_padded_inputs_have_an_iou_of_their_own():
    padded = replace(SMALL, fit="pad")
    found = run_audit([segmenter(ByPixel(), scenes=padded)], Scenes(noise(2, (13, 21))), AuditOptions(shifts=2))
    titles = [title for title, _, _ in table_rows(found)]
    assert titles[:3] == ["pixels, crops, 1 px", "pixels, crops, 8 px", "mIoU"]
    assert titles[-2:] == ["mIoU, input of mASSC", "mASSC"]


# in a real browser, light and dark, wide and narrow: images arrive, nothing sticks out, all can be read

NARROWEST = "Math.min(...[...document.querySelectorAll('dd, th')].map(e => e.getBoundingClientRect().width))"


@needs_browser
@pytest.mark.parametrize(
    "which", ["written", *(pytest.param(name, marks=pytest.mark.slow) for name in ("written_scenes", "written_fields"))]
)
def test_the_page_can_be_read(request, which):
    problems = []
    with open_browser() as page:
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda made: problems.append(made.url) if made.url.startswith("http") else None)
        page.on("dialog", lambda dialog: (problems.append("dialog"), dialog.dismiss()))
        page.goto(request.getfixturevalue(which)[1].as_uri())
        for scheme, width in itertools.product(("light", "dark"), (1280, 390)):
            assert_readable(page, scheme, width)
            assert page.evaluate(NARROWEST) > 100  # long names leave room for words
            page.wait_for_function("[...document.images].every(image => image.complete)")
            assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert problems == []
