"""Audits to draw: small, with awkward names, random weights and a skipped picture; and a reader of what is drawn."""

from html.parser import HTMLParser

import numpy as np
from PIL import Image
from small_segmenters import ByPixel, ByPlace, Scenes, noise, segmenter

from trueshift.data import ImageFolder
from trueshift.eval import AuditOptions, EvalOptions, adapted_twin, load_eval_model, run_audit

NASTY = "<script>alert(1)<script>&\"quoted\" 'name'"


def nasty_folder(folder):
    """Pictures in classes whose names would break a page that does not escape them."""
    generator = np.random.default_rng(0)
    for label, name in enumerate([NASTY, "b" * 60, "c"]):
        (folder / name).mkdir()
        for number in range(2):
            pixels = generator.integers(0, 256, (48, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"<img src=x onerror=alert({label}{number})>.png")
    (folder / "c" / "torn <b>.png").write_bytes(b"torn")
    return ImageFolder(folder)


def audit_of_twins(source, limit=8):
    request = EvalOptions(random_weights=True)
    ordinary = load_eval_model("swin_mini", request)
    settings = AuditOptions(limit=limit, shifts=4, examples=2, plane=8, batch_size=32)
    return run_audit([ordinary, adapted_twin(ordinary, request)], source, settings)


class NastyScenes(Scenes):
    """Scenes whose names and classes would break a page or a figure that takes them as they are."""

    def __init__(self):
        super().__init__([*noise(3), (OSError("torn <b>"), None)], (NASTY, "green", "blue"))

    def name(self, index):
        return f"<b>{index} $_{{x$"


def audit_of_segmenters(source):
    models = [segmenter(ByPlace(), "<img src=x onerror=alert(1)>"), segmenter(ByPixel(), "pixel $\\frac$")]
    return run_audit(models, source, AuditOptions(shifts=3, examples=2, batch_size=4))


class Reader(HTMLParser):
    """Every tag, and text by the tag that holds it."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
