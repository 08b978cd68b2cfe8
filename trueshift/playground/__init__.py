"""A page on which a visitor drags an image and two networks, ordinary and adaptive, answer live in the browser.

A second tab moves a camera over photographs, where no network is exact, with and without ``steady``.

They run in ONNX Runtime Web (``runtime``), from graphs without weights (``graphs``) and the bundled safetensors files,
which the page holds as scripts: it needs no server and makes no request.
"""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..data import EmbeddedSample
from ..models.bundled_weights import Shipped, find_shipped
from ..models.registry import resolve_name
from ..testing.images import PHOTOS, square_pixels
from ..utils.files import writable_folder, write_whole

FAMILIES = ("swin", "swinv2", "cvt", "mvitv2")
EVERY, FIRST = 25, 13  # images of the sample that are on the page, and which of these it opens with
PHOTO_SIDE, FIRST_PHOTO = 112, "rocket"  # of the photographs under the camera
_FOLDER = Path(__file__).parent
GRAPHS, RUNTIME = _FOLDER / "graphs", _FOLDER / "runtime"
_TITLE = "<title>trueshift playground</title>"


def network_names(family: str) -> tuple[str, str]:
    """The ordinary and the adaptive network of a family."""
    if family not in FAMILIES:
        raise ValueError(f"family {family!r}: needs one of {', '.join(FAMILIES)}")
    return f"{family}_mini", f"a_{family}_mini"


def weights_of(name: str) -> Path:
    """The safetensors file that a network's graph reads its weights from."""
    return _shipped(name).path


def write_playground(output: Path, family: str = "swin") -> Path:
    """Write the page as one file if ``output`` ends in ``.html``, else a folder with all families, loaded on demand.

    Both work without a server. Returns the path of the page.

    Args:
        output: a file or a folder; of what is there, only an earlier playground is replaced.
        family: ``"swin"``, ``"swinv2"``, ``"cvt"`` or ``"mvitv2"``: the one in the file, or the first to be shown.
    """
    names, alone = network_names(family), output.suffix.lower() == ".html" and not output.is_dir()
    page = output if alone else output / "index.html"
    if page.exists() and _TITLE not in page.read_text(errors="replace"):
        raise FileExistsError(f"{page} is not a playground: choose another place, e.g. --output playground.html")
    folder = writable_folder(page.parent)
    if alone:
        held = [_script("runtime", _runtime()), *(_script(name, _network(name)) for name in names)]
        return write_whole(page, _render(family, [family], held))
    data = writable_folder(folder / "data")
    write_whole(data / "runtime.js", _script("runtime", _runtime()))
    for each in FAMILIES:
        for name in network_names(each):
            write_whole(data / f"{name}.js", _script(name, _network(name)))
    return write_whole(page, _render(family, FAMILIES, []))


def _shipped(name: str) -> Shipped:
    found = find_shipped(resolve_name(name))
    assert found is not None, name
    return found


def _network(name: str) -> dict[str, bytes]:
    _shipped(name).check()
    return {"graph": (GRAPHS / f"{name}.onnx.gz").read_bytes(), "weights": gzip.compress(weights_of(name).read_bytes())}


def _runtime() -> dict[str, bytes]:
    notices = (RUNTIME / "LICENSE").read_bytes() + b"\n" + gzip.decompress(_packed("ThirdPartyNotices.txt"))
    return {
        "module": _packed("ort.wasm.bundle.min.mjs"),
        "wasm": _packed("ort-wasm-simd-threaded.wasm"),
        "notices": gzip.compress(notices),
    }


def _packed(name: str) -> bytes:
    return (RUNTIME / f"{name}.gz").read_bytes()


def _script(name: str, parts: Mapping[str, bytes]) -> str:
    """Compressed bytes as a script: what a page may load from a folder without a server."""
    encoded = {key: base64.b64encode(value).decode() for key, value in parts.items()}
    return f"(self.held ??= {{}})[{json.dumps(name)}] = {json.dumps(encoded)};\n"


def _render(family: str, families: Sequence[str], held: Sequence[str]) -> str:
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    files = {name: (_FOLDER / name).read_text() for name in ("page.css", "app.js", "worker.js")}
    return environment.get_template("index.html").render(files=files, held=held, settings=_settings(family, families))


def _settings(family: str, families: Sequence[str]) -> dict[str, Any]:
    source, prepared = EmbeddedSample(), _shipped(network_names(family)[0]).about["pretrained_cfg"]
    chosen = range(0, len(source), EVERY)
    pixels = np.ascontiguousarray(source.pixels[list(chosen)])
    photos = {path.stem: square_pixels(path, PHOTO_SIDE) for path in sorted(PHOTOS.glob("*.jpg"))}
    return {
        "family": family,
        "families": {each: network_names(each) for each in families},
        "classes": prepared["label_names"],
        "mean": prepared["mean"],
        "std": prepared["std"],
        "names": [source.name(index) for index in chosen],
        "labels": [int(source.labels[index]) for index in chosen],
        "pixels": _encoded(pixels),
        "photos": {
            "side": PHOTO_SIDE,
            "names": list(photos),
            "pixels": _encoded(np.stack([photo.permute(1, 2, 0).numpy() for photo in photos.values()])),
        },
        "opens": {"circle": FIRST, "camera": list(photos).index(FIRST_PHOTO)},
    }


def _encoded(pixels: np.ndarray) -> str:
    return base64.b64encode(gzip.compress(pixels.tobytes())).decode()
