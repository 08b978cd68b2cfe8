"""What an audit costs beyond its forward passes: 16 shifts of JPEG photographs, decoded once, cut on the device.

python -m benchmarks.speed.audit_overhead --device cuda --images 1000 --models swin_tiny_patch4_window7_224 a_swin_tiny

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
    swin = "swin_tiny_patch4_window7_224"
    counts = {"images": 1000, "shifts": 16, "batch": 128, "rounds": 3}
    words = {"device": "cpu", "precision": "float32", "models": [swin, f"a_{swin}"], "name": ""}
    options = record.options(__doc__, **counts, **words).parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        source = write_photographs(Path(folder), options.images)
        rows = [compare(name, source, options) for name in options.models]
    result = {key: getattr(options, key) for key in ("device", "precision", "images", "shifts", "batch")}
    name = options.name or f"audit_overhead_{options.device}"
    print(record.write(name, {**result, "rows": rows}, seed=0))


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
    place = {"device": options.device, "precision": options.precision}
    subject = load_eval_model(name, EvalOptions(random_weights=True, **place))
    views = len(source) * (options.shifts + 1)
    noise = torch.randn(options.batch, 3, *subject.preparation.size, device=options.device)

    @torch.inference_mode()
    def bare(batches: int = -(-views // options.batch)) -> None:
        for _ in range(batches):
            subject.forward(noise)

    def audit() -> None:
        settings = EvalOptions(options.shifts, 0, options.batch, **place)
        run_evaluation(subject, source, find_protocols(["circular"]), settings)

    def measured(work: timing.Run) -> tuple[float, int]:
        """Seconds, and the most memory in use: of the GPU, or of the process."""
        if options.device == "cpu":
            return timing.seconds(work, 1, False), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        torch.cuda.reset_peak_memory_stats()
        return timing.seconds(work, 1, True), torch.cuda.max_memory_allocated()

    bare(3)
    rounds = [(*measured(bare), *measured(audit)) for _ in range(options.rounds)]
    needed, alone, spent, beside = zip(*rounds, strict=True)
    ratio, _ = timing.ratio(spent, needed)
    row = {"model": name, "views": views, "bare_seconds": median(needed), "audit_seconds": median(spent)}
    row |= {"ratio": ratio, "ratios": [long / short for long, short in zip(spent, needed, strict=True)]}
    row["extra_memory_mib"] = max(most - less for most, less in zip(beside, alone, strict=True)) / 2**20
    print(row)
    return row


if __name__ == "__main__":
    main()
