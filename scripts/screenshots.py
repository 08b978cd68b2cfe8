"""Take the screenshots in docs/images again: the playground and a report, in Chromium.

Needs `playwright`, and Chromium on the PATH. Look at what it writes.
"""

import shutil
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from trueshift.cli import main as command
from trueshift.playground import write_playground

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DESKTOP, PHONE = {"width": 1240, "height": 820}, {"width": 390, "height": 820}


def shot(page: Any, **options: Any) -> Image.Image:
    """What the page shows."""
    return Image.open(BytesIO(page.screenshot(**options))).convert("RGB")


def press(page: Any, key: str, times: int = 1) -> None:
    """Move by keys, and wait until both networks have answered."""
    for _ in range(times):
        before = page.evaluate("moves")
        page.keyboard.press(key)
        page.wait_for_function(f"moves === {before + 1}")


def playground(page: Any, folder: Path) -> None:
    """An image that goes once around the circle, as an animation; both tabs; a phone."""
    page.set_viewport_size(DESKTOP)
    page.goto(write_playground(folder / "playground.html").as_uri())
    page.wait_for_function("ready && networks.every(network => network.answers?.size === 1024)")
    page.focus("#stage")
    frames = []
    for _ in range(32):
        press(page, "ArrowRight")
        press(page, "ArrowDown")
        page.wait_for_timeout(300)  # bars take their time
        frames.append(shot(page, clip={"x": 30, "y": 70, "width": 1180, "height": 740}).resize((826, 518)))
    palette = frames[0].quantize(255, Image.Quantize.FASTOCTREE)  # one is left for what does not change
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    small[0].save(IMAGES / "playground.gif", save_all=True, append_images=small[1:], duration=350, loop=0)

    press(page, "ArrowRight", 3)
    press(page, "ArrowDown", 4)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(300)
    shot(page).save(IMAGES / "playground.png", optimize=True)
    page.set_viewport_size(PHONE)
    shot(page, full_page=True).save(IMAGES / "playground_phone.png", optimize=True)

    page.set_viewport_size(DESKTOP)
    page.click("#tab-camera")
    page.focus("#photo")
    press(page, "ArrowRight", 30)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(300)
    shot(page).save(IMAGES / "playground_crop.png", optimize=True)


def report(page: Any, folder: Path) -> None:
    """The top of a report."""
    words = ["swin_mini", "--against", "a_swin_mini", "--limit", "32", "--shifts", "8"]
    command(["audit", *words, "--output", str(folder / "audit")])
    page.set_viewport_size({"width": 928, "height": 1500})
    page.goto((folder / "audit" / "report.html").as_uri())
    shot(page).save(IMAGES / "audit.png", optimize=True)


def main() -> None:
    """All of them."""
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(600_000)
        playground(page, Path(folder))
        report(page, Path(folder))


if __name__ == "__main__":
    main()
