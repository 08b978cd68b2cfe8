"""What an audit costs beyond its forward passes: 16 shifts of JPEG photographs, decoded once, cut on the device.

Bare passes (as many batches of the same size, of noise that lies on the device already) and audits take turns;
the ratio of each turn is recorded, with the largest memory beyond that of the bare passes.
"""

import argparse
import resource
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from benchmarks.common import record, timing
from trueshift.data import ImageFolder
from trueshift.eval import EvalOptions, find_protocols, load_eval_model, run_evaluation
from trueshift.testing.images import PHOTOS


def main() -> None:
    options = record.options(__doc__, "audit_overhead").parse_args()
    timing.set_precision("float32")
    with tempfile.TemporaryDirectory() as folder:
        source = write_photographs(Path(folder), options.images)
        rows = [compare(name, source, options) for name in options.models]
    settings = {key: getattr(options, key) for key in ("device", "precision", "images", "shifts", "batch")}
    print(record.write(options.name or f"audit_overhead_{options.device}", {**settings, "rows": rows}, seed=0))


def write_photographs(folder: Path, count: int) -> ImageFolder:
    """JPEG files of 500 x 375 pixels, as ImageNet's are on average: crops of the photographs that come with us."""
    generator = np.random.default_rng(0)
    photos = [Image.open(path).convert("RGB") for path in sorted(PHOTOS.glob("*.jpg"))]
    for index in range(count):
        photo = photos[index % len(photos)]
        left, top = generator.integers(0, (photo.width // 3, photo.height // 3))
        crop = photo.crop((left, top, left + photo.width * 2 // 3, top + photo.height // 2))
        crop.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{index:05d}.jpg", quality=90)
    return ImageFolder(folder)


def compare(name: str, source: ImageFolder, options: argparse.Namespace) -> dict:
    cuda = options.device != "cpu"
    place = {"device": options.device, "precision": options.precision}
    subject = load_eval_model(name, EvalOptions(random_weights=True, **place))
    views = len(source) * (options.shifts + 1)
    noise = torch.randn(options.batch, 3, *subject.preparation.size, device=options.device)

    @torch.inference_mode()
    def bare() -> None:
        for _ in range(-(-views // options.batch)):
            subject.forward(noise)

    def audit() -> None:
        settings = EvalOptions(options.shifts, 0, options.batch, **place)
        run_evaluation(subject, source, find_protocols(["circular"]), settings)

    def most_memory(work: timing.Run) -> float:
        """In use while it runs, in MiB: of the GPU, or of the process so far."""
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        work()
        process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return torch.cuda.max_memory_allocated() / 2**20 if cuda else process

    alone, beside = most_memory(bare), most_memory(audit)
    taken = timing.interleaved({"bare": bare, "audit": audit}, options.rounds, cuda, 0)
    row = {"model": name, "views": views, "ratio": timing.ratio(taken["audit"], taken["bare"])[0]}
    row |= {f"{work}_seconds": median(seconds) for work, seconds in taken.items()}
    row["ratios"] = [spent / needed for needed, spent in zip(*taken.values(), strict=True)]
    row["extra_memory_mib"] = beside - alone
    print(row)
    return row


if __name__ == "__main__":
    main()
