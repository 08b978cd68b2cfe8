"""Put trained small models into the package: weights in half precision, their description, their card.

python -m benchmarks.release.ship_weights RUN ...

A run is its folder, the ``final`` folder in it, or the file that ``accuracy/cifar.py --keep-weights`` made of it. Its
result is the JSON file of its name beside it, or its own ``summary.json``. Nothing is written unless the rounded
weights, loaded as users load them, pass every check.
"""

import json
import sys
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path
from textwrap import fill
from unittest import mock

import torch
from jinja2 import Environment, StrictUndefined
from safetensors.torch import save

import trueshift
from benchmarks.accuracy import store
from benchmarks.accuracy.rows import RATES
from benchmarks.accuracy.runs import restore_weights
from benchmarks.common import record
from benchmarks.common.record import Recorded
from trueshift.data import EmbeddedSample, Preparation
from trueshift.data.subset import spread
from trueshift.models import Backbone, from_pretrained
from trueshift.models import bundled_weights as shipped
from trueshift.models.hub import read_json
from trueshift.testing import assert_invariant
from trueshift.utils.files import json_text, write_whole

LIMIT = 6_000_000  # bytes
TAG = "cifar10"
BATCH = 50
CFG = ["input_size", "interpolation", "crop_pct", "mean", "std"]
CFG += ["num_classes", "label_names", "first_conv", "classifier"]
PAPER = {"paper_name": "Making Vision Transformers Truly Shift-Equivariant", "paper_ids": "arXiv:2305.16316"}


class Refused(ValueError):
    """Weights that must not be shipped, and why."""


def numbers_of(result: Recorded) -> Recorded:
    """Top-1, C-Cons. and S-Cons. between 0 and 1, and how many images they are of; None where not measured."""
    measured = result.get("result", result).get("evaluation", {})
    circular, standard = (measured.get(name, {}) for name in ("circular", "cifar-standard"))
    top1, nothing = circular.get("top1") or standard.get("top1") or {}, {"rate": None}
    consistency = {"c_cons": circular, "s_cons": standard}
    rates = {key: each.get("consistency", nothing)["rate"] for key, each in consistency.items()}
    return {"top1": top1.get("rate"), **rates, "data": f"{top1.get('images', 0):,} test images"}


def over_grids(recipe: str, seed: int | None) -> list[Recorded]:
    """The same numbers of the mean over several grids, where the tables have them."""
    found = []
    for grids, device in product((2, 4), ("cuda", "cpu")):
        numbers = {key: store.numbers(recipe, f"grids_{grids}", *each, device) for key, each in RATES.items()}
        if seed in numbers["top1"]:
            found.append({"grids": grids, **{key: each[seed] for key, each in numbers.items()}})
    return found


def training_of(result: Recorded, recipe: str) -> Recorded:
    """How the weights were made; a run's own file keeps recipe and configuration under ``result``."""
    kept, machine = result.get("result", result), result.get("machine", {})
    return {
        "recipe": kept.get("recipe", recipe),
        **{key: result.get(key) for key in ("seed", "commit", "date")},
        "epochs": kept["config"]["schedule"]["epochs"],
        "data": "CIFAR-10",
        "machine": machine.get("gpu") or machine.get("processor") or "a machine that was not recorded",
    }


def card(about: Recorded) -> str:
    """The text of ``NAME.TAG.md``, written from the description and ``model_card.md.jinja`` alone."""
    made = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    made.filters["paragraph"] = _paragraph
    return made.from_string(Path(__file__).with_name("model_card.md.jinja").read_text()).render(
        about,
        family=store.title_of(about["architecture"].removeprefix("a_").partition("_")[0], False).removesuffix("-mini"),
        stored=" and ".join(
            f"{count:,} in {kind}" for kind, count in about["weights"]["stored"].items() if kind != "int64"
        ),
        needed=", ".join(f"`{key}={value!r}`" for key, value in about["arguments"].items()) or "nothing",
    )


def _paragraph(text: str, bullet: str = "") -> str:
    return fill(" ".join(text.split()), 120, initial_indent=bullet, subsequent_indent=" " * len(bullet))


def logits_of(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([model(part) for part in images.split(BATCH)])


@torch.inference_mode()
def compare(kept: Backbone, loaded: Backbone, images: int = 400, shifts: int = 8, allowed: int = 2) -> Recorded:
    """What rounding does to the answers, and shifts to those of an adaptive network.

    The images are those of the package, of CIFAR-10's test set, evenly spread over all of them.
    """
    source, preparation = EmbeddedSample(), Preparation.from_config(loaded.pretrained_cfg)
    taken = spread(len(source), images)
    batch = torch.stack([preparation.normalise(preparation.canvas(source[index].image)) for index in taken])
    before, after = logits_of(kept, batch), logits_of(loaded, batch)
    answers = after.argmax(1)
    same = int((before.argmax(1) == answers).sum())
    if images - same > allowed:
        raise Refused(f"rounded, it answers {images - same} of {images} images differently: allowed are {allowed}")
    moved = batch[: 2 * BATCH] if loaded.architecture.startswith("a_") else batch[:0]
    if len(moved):
        try:
            assert_invariant(loaded, moved, shifts=shifts)
        except AssertionError as error:
            raise Refused(f"rounded, it changes its logits under shifts: {error}") from error
    return {
        "images": images,
        "same_answers": same,
        "top1": int((answers == torch.from_numpy(source.labels[taken])).sum()) / images,
        "largest_logit_change": (before - after).abs().max().item(),
        "shifted_views": shifts * len(moved),
    }


def ship(
    model: Backbone, folder: Path, training: Recorded, measured: Recorded, kept_in: str = "float32", **limits: int
) -> Path:
    """Check a trained model, read from weights ``kept_in`` some precision; write its files, return the JSON's path."""
    model = model.eval()
    stored, stored_numbers = shipped.packed(model.state_dict()), Counter[str]()
    for key, value in model.state_dict().items():
        if not value.isfinite().all():
            raise Refused(f"{key} holds values that are not numbers")
        if not stored[key].isfinite().all():
            raise Refused(f"{key} holds {value.abs().max():.3g}: half precision ends at 65504")
        stored_numbers[str(stored[key].dtype).removeprefix("torch.")] += value.numel()
    data = save(stored, metadata={"format": "pt"})
    if len(data) > LIMIT:
        raise Refused(f"{len(data):,} bytes: needs {LIMIT:,} at most, which half precision of 3 million parameters has")
    cfg = {key: model.pretrained_cfg[key] for key in CFG if model.pretrained_cfg.get(key) is not None}
    if len(cfg.get("label_names", ())) != model.num_classes:
        raise Refused(f"{model.num_classes} classes, but {len(cfg.get('label_names', ()))} names of them")
    stem = f"{model.architecture}.{TAG}"
    # left to the user are how the network was trained, and what depends on its use
    free = ("num_classes", "feature_frame")
    arguments = model.changed_arguments().items()
    with tempfile.TemporaryDirectory() as drafts:
        draft = Path(drafts)
        weights = write_whole(draft / f"{stem}.safetensors", data)
        about = {
            "architecture": model.architecture,
            "tag": TAG,
            "arguments": {key: value for key, value in arguments if key not in free and not key.endswith("_rate")},
            "pretrained_cfg": {**cfg, "num_classes": model.num_classes, "license": "apache-2.0", **PAPER},
            "weights": {
                "file": weights.name,
                "sha256": shipped.sha256_of(weights),
                "bytes": len(data),
                "parameters": sum(value.numel() for value in model.parameters()),
                "stored": dict(stored_numbers),
            },
            "training": training,
            "measured": {"data": "test images", **measured},
        }
        described = write_whole(draft / f"{stem}.json", json_text(about))
        with mock.patch.object(shipped, "FOLDER", draft):  # as users will load it
            loaded = trueshift.create_model(stem, pretrained=True).eval()
        about["verified"] = {**compare(model, loaded, **limits), "compared_with": kept_in}
        write_whole(described, json_text(about))
        write_whole(draft / f"{stem}.md", card(json.loads(described.read_text())))
        for suffix in ("safetensors", "md", "json"):  # the description last: it is what makes a model known
            write_whole(folder / f"{stem}.{suffix}", (draft / f"{stem}.{suffix}").read_bytes())
    return folder / f"{stem}.json"


def open_run(source: Path) -> tuple[Backbone, str]:
    """The trained network, and in which precision its weights were kept."""
    if source.suffix == ".safetensors":
        with tempfile.TemporaryDirectory() as folder:
            return from_pretrained(restore_weights(source, Path(folder))), "float16"
    return from_pretrained(source / "final" if (source / "final").is_dir() else source), "float32"


def find_result(source: Path) -> Recorded:
    """What was measured of a run."""
    run = source.resolve().parent if source.name == "final" else source.resolve()
    beside = run.with_name(f"{run.name.removesuffix('.safetensors')}.json")
    own = run / "summary.json"
    if not beside.exists() and not own.exists():
        raise Refused(f"no result: needs {beside.name} beside it")
    return read_json(beside if beside.exists() else own)


def main() -> int:
    parser = record.options(__doc__, "ship_weights")
    parser.add_argument("sources", nargs="+", type=Path, metavar="RUN")
    given = parser.parse_args()
    refused = 0
    for source in given.sources:
        try:
            result = find_result(source)
            measured = numbers_of(result)
            if measured["top1"] is None:
                raise Refused("its result has no Top-1: needs that of the run with its evaluation")
            model, kept_in = open_run(source)
            training = training_of(result, model.architecture)
            measured["several"] = over_grids(training["recipe"], training["seed"])
            path = ship(model, given.folder, training, measured, kept_in, shifts=given.shifts, allowed=given.allow)
        except (ValueError, OSError) as error:
            refused += 1
            print(f"not shipped: {source}: {error}", file=sys.stderr)
            continue
        about = read_json(path)
        print(f"{path.name}: {about['weights']['bytes']:,} bytes, {json.dumps(about['verified'])}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
