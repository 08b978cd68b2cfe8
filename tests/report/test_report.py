import base64
import io
import json
import re

import pytest
from known_models import Constant, subject
from PIL import Image
from report_samples import Reader

from trueshift.data import EmbeddedSample
from trueshift.eval import AuditOptions, find_protocols, run_audit
from trueshift.report.wording import number, percent, verdict


@pytest.fixture(scope="module")
def page(written):
    reader = Reader()
    reader.feed(written[1].read_text())
    return reader


def test_names_of_files_and_classes_are_escaped(written, page):
    assert "script" not in page.tags
    assert "b" not in page.tags  # from "torn <b>.png"
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "&lt;script&gt;alert(1)" in written[1].read_text()
    assert "torn &lt;b&gt;.png" in written[1].read_text()


def test_the_page_needs_nothing_else(page):
    addresses = [value for _, name, value in page.attributes if name in ("src", "srcset", "href")]
    assert addresses
    assert all(address.startswith("data:") for address in addresses)


def test_every_picture_is_one(page):
    pictures = [value for tag, name, value in page.attributes if (tag, name) in (("img", "src"), ("source", "srcset"))]
    assert len(pictures) > 20
    for picture in pictures:
        head, data = picture.split(",", 1)
        assert head == "data:image/png;base64"
        assert min(Image.open(io.BytesIO(base64.b64decode(data))).size) > 0


def test_pictures_say_what_they_show(page):
    images = page.tags.count("img")
    assert images == len([1 for tag, name, value in page.attributes if (tag, name) == ("img", "alt") and value])


def test_what_must_be_known_is_said(written):
    found, path = written
    text = path.read_text()
    assert "random initialisation" in text
    assert "1 skipped" in text
    for protocol in found["protocols"].values():
        assert protocol["description"].replace("'", "&#39;") in text
    assert "±" in text


def test_the_files_are_there(written):
    found, path = written
    assert json.loads((path.parent / "audit.json").read_text())["data"]["images"] == found["data"]["images"] == 6
    assert len((path.parent / "images.csv").read_text().splitlines()) == 7
    for name in ("magnitudes", "planes", "tokens"):
        with Image.open(path.parent / "figures" / f"{name}.png") as figure:
            assert min(figure.size) > 300


def test_default_stands_beside_adapted(written):
    found, path = written
    ordinary, adapted = found["models"]
    assert adapted["name"] == "swin_mini, adapted"
    assert adapted["measured"]["circular"]["bit_exact"]["rate"] == 1
    assert all(stage["largest"] == 0 for entry in adapted["tokens"] for stage in entry["stages"])
    assert all(stage["largest"] > 0 for entry in ordinary["tokens"] for stage in entry["stages"])
    assert all(plane["different_answers"] == 1 for plane in adapted["planes"])
    text = re.sub(r"\s+", " ", path.read_text())
    assert "under every circular shift tried, bit for bit" in text


def test_a_rate_below_one_is_never_shown_as_a_hundred():
    assert percent({"rate": 0.999999}) == "99.99\N{NO-BREAK SPACE}%"
    assert percent({"rate": 1.0}) == "100.00\N{NO-BREAK SPACE}%"
    assert percent(None) == "n/a"
    assert (number(0.0), number(1e-7), number(None)) == ("0", "1e-07", "n/a")


def test_the_verdict_counts_images_that_flip(written):
    found, _ = written
    flipped = sum(agreed < 1 for _, agreed in found["models"][0]["consistency_of_images"])
    assert flipped > 0
    assert f"changes its answer for {flipped} of 6 images" in verdict(found)


@pytest.mark.parametrize(("protocol", "kind"), [("circular", "circular"), ("cifar-standard", "standard")])
def test_the_verdict_names_the_kind_of_shift_it_is_about(protocol, kind):
    protocols = find_protocols([protocol])
    settings = AuditOptions(limit=3, examples=0)
    found = run_audit([subject(Constant(), "constant")], EmbeddedSample(), settings, protocols)
    assert verdict(found) == f"constant gives all 3 images the same answer under every {kind} shift tried, bit for bit."
