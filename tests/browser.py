"""A real browser for pages: Chromium or Chrome, if there is one, and what makes a page readable in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH")

# the contrast of each piece of text with the ground behind it, after WCAG
CONTRASTS = """() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { while (e) { const c = getComputedStyle(e).backgroundColor;
    if (!c.endsWith(', 0)')) return c; e = e.parentElement; } return 'rgb(255, 255, 255)'; };
  const speaks = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  return [...document.querySelectorAll('main *')].filter(speaks)
    .map(e => { const s = getComputedStyle(e), a = light(s.color), b = light(ground(e));
      return {text: e.textContent.trim().slice(0, 40), size: parseFloat(s.fontSize),
              contrast: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)}; });
}"""
# what reaches beyond the window, except in boxes that scroll
OUTSIDE = """() => [...document.querySelectorAll('main *')]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
  .filter(e => !e.closest('.wide')).map(e => e.outerHTML.slice(0, 80))"""


@contextmanager
def open_browser() -> Iterator[Any]:
    """A page of playwright, which waits long: a slow machine may take minutes for what takes seconds elsewhere."""
    playwright = pytest.importorskip("playwright.sync_api")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    patience = 600_000  # ms
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=quiet, timeout=patience)
        page = browser.new_page()
        page.set_default_timeout(patience)
        yield page
        browser.close()


def assert_readable(page: Any, scheme: str, width: int) -> None:
    """Nothing sticks out, all text has contrast and size, and the ground is what the reader asked for."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OUTSIDE) == []
    texts = page.evaluate(CONTRASTS)
    assert len(texts) > 50
    assert [text for text in texts if text["contrast"] < 4.5] == []
    assert min(text["size"] for text in texts) >= 12
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.strip("rgb()").split(","))) > 600) == (scheme == "light")
