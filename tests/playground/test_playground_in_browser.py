"""The playground in a real browser, from a file: dragged, moved by keys, with images of one's own, wide and narrow."""

from contextlib import contextmanager

import pytest
import torch
from browser import assert_readable, needs_browser, needs_firefox, open_browser, open_firefox
from PIL import Image

from trueshift.data import EmbeddedSample, Preparation
from trueshift.models.registry import create_model
from trueshift.motion import steady
from trueshift.playground import EVERY, FAMILIES, FIRST, PHOTO_SIDE, network_names, write_playground
from trueshift.testing.images import PHOTOS, square_pixels

READY = "ready && networks.every(network => network.answers?.size > 0)"
PLACES = [(step % 9, step // 9) for step in range(1, 65)]  # to drag the image to, in pixels
SEEN = "networks.map(({changes, largest, patterns}) => ({changes, largest, patterns: patterns.size}))"


@torch.inference_mode()
def assert_golden(page, family):
    """The logits of the image that the page opens with are those of PyTorch."""
    source = EmbeddedSample()
    for at, name in enumerate(network_names(family)):
        model = create_model(name, pretrained=True).eval()
        preparation = Preparation.from_config(model.pretrained_cfg)
        wanted = model(preparation.normalise(preparation.canvas(source[EVERY * FIRST].image))[None])[0]
        found = torch.tensor(page.evaluate(f"[...networks[{at}].first]"))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)


@contextmanager
def opened(folder):
    """The page in one file, once it is ready; it asks for nothing else and raises nothing."""
    written, requests, problems = write_playground(folder / "page.html"), [], []
    with open_browser() as page:
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda made: requests.append(made.url))
        page.goto(written.as_uri())
        page.wait_for_function(READY)
        yield page
    assert problems == []
    assert [url for url in requests if not url.startswith(("blob:", "data:"))] == [written.as_uri()]


def drag(page, selector, side, places):
    """Move the image with a pointer that is held down, to places that are each looked at."""
    box = page.locator(selector).bounding_box()
    pixel, x, y = box["width"] / side, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step, (across, down) in enumerate(places, 1):
        page.mouse.move(x + across * pixel, y + down * pixel)
        page.wait_for_function(f"moves === {step}")
    page.mouse.up()


@needs_browser
def test_drag_keys_own_images_and_small_screens(tmp_path):
    broken, own = tmp_path / "torn.png", tmp_path / "own.png"
    broken.write_bytes(b"torn")
    image = Image.new("RGB", (96, 64), "red")
    image.paste((10, 200, 30), (16, 0, 80, 64))  # the square in its middle
    image.save(own)
    with opened(tmp_path) as page:
        page.evaluate("allShifts = () => rest = []")  # the slow test fills the map
        assert_golden(page, "swin")

        drag(page, "#stage", 32, PLACES)
        ordinary, adaptive = page.evaluate(SEEN)
        assert adaptive == {"changes": 0, "largest": 0, "patterns": 1}
        assert ordinary["changes"] > 0
        assert ordinary["largest"] > 0.1
        assert ordinary["patterns"] > 64
        assert page.evaluate("String([...networks[0].answers.keys()]) === String([...networks[1].answers.keys()])")
        assert page.inner_text("#adaptive .changes") == "0 in 64 moves"
        assert page.inner_text("#adaptive .largest") == "exactly 0"
        assert page.inner_text("#ordinary .patterns") == str(page.evaluate("networks[0].patterns.size"))

        page.keyboard.press("Shift+Tab")
        page.evaluate("document.activeElement.blur()")
        page.locator("body").press("Tab")
        assert page.evaluate("document.activeElement.id") == "stage"
        assert page.evaluate("getComputedStyle(document.querySelector('.frame')).outlineStyle") == "solid"
        before = page.evaluate("at")
        for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowUp"):
            page.keyboard.press(key)
        assert page.evaluate("at") == {"dy": (before["dy"] + 1) % 32, "dx": (before["dx"] - 1) % 32}
        assert page.evaluate("scrollY") == 0

        page.set_input_files("#file", own)
        page.wait_for_function("image.label === null")
        assert page.evaluate(
            "[...new Set([0, 1, 2].map(c => image.pixels.filter((_, at) => at % 3 === c))"
            ".map(plane => `${Math.min(...plane)} ${Math.max(...plane)}`))]"
        ) == ["10 10", "200 200", "30 30"]
        page.set_input_files("#file", broken)
        page.wait_for_selector("#state.bad")
        assert "torn.png cannot be read as an image" in page.inner_text("#state")
        assert page.evaluate("image.name") == "your image"

        for scheme, width in (("light", 1280), ("dark", 390)):
            assert_readable(page, scheme, width)
        page.emulate_media(reduced_motion="reduce")
        assert page.evaluate("getComputedStyle(document.querySelector('.bars i')).transitionProperty") == "none"
        page.click("summary")
        page.click("#show-notices")
        page.wait_for_function("$('notices').textContent.includes('MIT License')")


@needs_browser
@torch.inference_mode()
def test_a_camera_moves_over_a_photograph(tmp_path):
    own = tmp_path / "own.png"
    Image.new("RGB", (300, 200), (10, 200, 30)).save(own)
    models = [create_model(name, pretrained=True).eval() for name in network_names("swin")]
    pixels = square_pixels(PHOTOS / "rocket.jpg", PHOTO_SIDE)
    photo = Preparation.from_config(models[0].pretrained_cfg).normalise(pixels)[None]
    with opened(tmp_path) as page:
        page.evaluate("rest = []")
        page.focus("#tab-circle")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == "tab-camera"
        assert page.get_attribute("#tab-camera", "aria-selected") == "true"
        assert page.is_visible("#photo")
        assert not page.is_visible("#stage")
        assert "No guarantee holds here" in page.inner_text("header")

        page.wait_for_function(READY)
        for at, model in enumerate(models):  # the camera starts in the middle, and so does what the networks see
            found = torch.tensor(page.evaluate(f"[...networks[{at}].first]"))
            torch.testing.assert_close(found, model(photo[..., 40:72, 40:72])[0], rtol=0, atol=1e-3)
        ours = steady(models[0], 32)
        for dy, dx in ((0, 0), (0, 64), (13, 7), (31, 40), (50, 22), (64, 64)):
            place = f"{{dy: {dy}, dx: {dx}, view: 48, steady: true}}"
            crop = page.evaluate(f"networks[0].ask('camera', {place}).then(answer => answer.crop)")
            chosen = ours.choose(photo[..., dy : dy + 48, dx : dx + 48]).offset
            assert chosen.tolist() == [[crop["dy"] - dy, crop["dx"] - dx]]

        drag(page, "#photo", PHOTO_SIDE, [(step, 0) for step in range(1, 25)])
        assert page.evaluate("at") == {"dy": 32, "dx": 56}
        ordinary, adaptive = page.evaluate(SEEN)
        assert ordinary["patterns"] == adaptive["patterns"] == 25  # no guarantee
        assert page.evaluate("networks[0].answers.size") == 25

        page.check("#steady")
        page.wait_for_function(READY)
        page.focus("#photo")
        seen = {}
        for step in range(1, 17):
            page.keyboard.press("ArrowRight" if step % 4 else "ArrowDown")
            page.wait_for_function(f"moves === {step}")
            crop = page.evaluate("`${$('crop').style.top} ${$('crop').style.left}`")
            seen.setdefault(crop, set()).add(page.evaluate("String(networks.map(each => fingerprint(each.logits)))"))
        assert 1 <= len(seen) < 8
        assert all(len(fingerprints) == 1 for fingerprints in seen.values())  # one crop, one pattern of bits
        page.click("#play")
        page.wait_for_function("moves >= 24")
        page.click("#play")
        assert page.inner_text("#play") == "Play"

        page.set_input_files("#file", own)
        page.wait_for_function("image.name === 'your image'")
        assert page.evaluate("image.pixels.length") == 3 * PHOTO_SIDE**2
        for scheme, width in (("dark", 1280), ("light", 390)):
            assert_readable(page, scheme, width)
        page.click("#tab-circle")
        page.wait_for_function(READY)
        assert page.evaluate("image.label !== null && image.pixels.length === 3 * 32 * 32")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return write_playground(tmp_path_factory.mktemp("site"), "cvt")


@pytest.mark.slow
@needs_firefox
def test_drag_in_firefox(tmp_path):
    page = write_playground(tmp_path / "page.html")
    with open_firefox(tmp_path / "profile", page.as_uri()) as firefox:
        firefox.wait(READY)
        firefox.evaluate("allShifts = () => rest = []")
        assert_golden(firefox, "swin")
        box = firefox.evaluate("$('stage').getBoundingClientRect().toJSON()")
        pixel, x, y = box["width"] / 32, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        firefox.pointer({"type": "pointerMove", "x": round(x), "y": round(y)}, {"type": "pointerDown", "button": 0})
        for step, (across, down) in enumerate(PLACES, 1):
            firefox.pointer({"type": "pointerMove", "x": round(x + across * pixel), "y": round(y + down * pixel)})
            firefox.wait(f"moves === {step}")
        firefox.pointer({"type": "pointerUp", "button": 0})
        ordinary, adaptive = firefox.evaluate(SEEN)
        assert adaptive == {"changes": 0, "largest": 0, "patterns": 1}
        assert ordinary["changes"] > 0
        assert ordinary["patterns"] > 64


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_loaded_when_chosen_and_seen_at_all_shifts(site, family):
    requests = []
    with open_browser() as page:
        page.on("request", lambda made: requests.append(made.url))
        page.goto(site.as_uri())
        page.wait_for_function(READY)
        loaded = {url.rpartition("/")[2] for url in requests if url.endswith(".js")}
        assert loaded == {"runtime.js", "cvt_mini.js", "a_cvt_mini.js"}
        if family != "cvt":
            page.select_option("#family", family)
        page.wait_for_function(f"{READY} && networks[1].answers.size === 1024")
        assert_golden(page, family)
        ordinary, adaptive = page.evaluate(SEEN)
        assert adaptive == {"changes": 0, "largest": 0, "patterns": 1}
        assert ordinary["patterns"] > 1
        assert page.evaluate("new Set(networks[0].answers.values()).size") > 1
        assert page.inner_text("#adaptive h2 small") == f"a_{family}_mini"
    assert all(url.startswith(("blob:", "data:", site.parent.as_uri())) for url in requests)
