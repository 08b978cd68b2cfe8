"""Audits to draw: small, with awkward names, random weights and a skipped picture."""

import numpy as np
from PIL import Image

from trueshift.data import ImageFolder
from trueshift.eval import AuditSettings, Request, adapted_twin, load_subject, run_audit

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
    request = Request(random_weights=True)
    ordinary = load_subject("swin_mini", request)
    settings = AuditSettings(limit=limit, shifts=4, examples=2, plane=8, batch_size=32)
    return run_audit([ordinary, adapted_twin(ordinary, request)], source, settings)
