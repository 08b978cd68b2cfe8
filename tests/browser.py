"""Real browsers for pages, if there are any: Chromium or Chrome, and Firefox. What makes a page readable in one."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH")
FIREFOX = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
needs_firefox = pytest.mark.skipif(FIREFOX is None, reason="needs Firefox on the PATH")

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


class Firefox:
    """Firefox without a window, by the protocol that it speaks itself (Marionette). playwright brings its own build."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.answers = connection, connection.makefile("rb")
        self._answer()  # its greeting
        self.call("WebDriver:NewSession", capabilities={})

    def _answer(self) -> Any:
        length = b"".join(iter(lambda: self.answers.read(1), b":"))
        return json.loads(self.answers.read(int(length)))

    def call(self, command: str, **parameters: Any) -> Any:
        """One command of WebDriver; what it gives."""
        message = json.dumps([0, 1, command, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(message), message))
        *_, error, result = self._answer()
        assert error is None, error
        return result

    def evaluate(self, expression: str) -> Any:
        """An expression in the page."""
        script = f"return window.eval({json.dumps(expression)})"
        return self.call("WebDriver:ExecuteScript", script=script, args=[], sandbox=None)["value"]

    def pointer(self, *actions: dict[str, Any]) -> None:
        """Move and press the mouse."""
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self.call("WebDriver:PerformActions", actions=[mouse])

    def wait(self, expression: str) -> None:
        """Until an expression in the page is true."""
        wait_for(lambda: self.evaluate(expression))


def wait_for(done: Callable[[], Any], patience: float = 600) -> Any:
    """What a function gives, once that is true."""
    end = time.monotonic() + patience
    while not (found := done()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
    return found


@contextmanager
def open_firefox(profile: Path, url: str) -> Iterator[Firefox]:
    """A page in Firefox, which ends with the block."""
    profile.mkdir()
    (profile / "user.js").write_text('user_pref("marionette.port", 0);')  # any free one, which it writes to a file
    port = profile / "MarionetteActivePort"
    command = [str(FIREFOX), "--headless", "--no-remote", "--marionette", "--profile", str(profile)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            address = "127.0.0.1", int(wait_for(lambda: port.exists() and port.read_text()))
            with socket.create_connection(address) as connection:
                firefox = Firefox(connection)
                firefox.call("WebDriver:Navigate", url=url)
                yield firefox
                firefox.answers.close()
        finally:
            process.kill()


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
