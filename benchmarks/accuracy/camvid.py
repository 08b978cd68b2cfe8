"""Segmentation on real data: ordinary and adaptive Swin-T and SwinV2-T with UperNet, by the recipes for CamVid.

    python -m benchmarks.accuracy.camvid --data data/camvid

Each is trained from random weights with the same recipe, seed and number of steps; at the end its final weights are
measured on the test split: mIoU, mASCC under circular and mASSC under standard shifts, float32.
"""

import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.common import record
from benchmarks.common.package import parse_arguments, train

MODELS = ("swin_tiny", "a_swin_tiny", "swinv2_tiny", "a_swinv2_tiny")


def main() -> None:
    given, more = record.options(
        __doc__,
        data={"required": True},
        models={"default": list(MODELS), "choices": MODELS},
        seed=0,
        keep={"type": Path, "help": "folder for weights, logs and checkpoints"},
    ).parse_known_args()
    for name in given.models:
        with tempfile.TemporaryDirectory() as scratch:
            folder = (given.keep or Path(scratch)) / name
            words = ["--config", f"camvid/{name}", "--data.path", given.data, "--output", str(folder)]
            words += ["--seed", str(given.seed), "--log.tensorboard", "false", *more]
            if train(parse_arguments(words).config, Console()):
                raise SystemExit("training did not end well")
            summary, log = record.training_run(folder)
        del summary["config"]["output"]  # where it was written says nothing elsewhere
        kept = ("config", "data", "steps", "seconds", "best_mean_iou", "evaluation")
        record.write(f"camvid_{name}", {"model": name, **{key: summary[key] for key in kept}, "log": log}, given.seed)


if __name__ == "__main__":
    main()
