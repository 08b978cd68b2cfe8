"""Segmentation on real data: ordinary and adaptive Swin-T and SwinV2-T with UperNet, by the recipes for CamVid.

    python -m benchmarks.accuracy.camvid --data data/camvid

Each is trained from random weights with the same recipe, seed and number of steps; at the end its final weights are
measured on the test split: mIoU, mASCC under circular and mASSC under standard shifts, float32. Options that are not
those of this program are for all trainings.
"""

import sys

from benchmarks.common import record
from benchmarks.common.processes import run_jobs, training

MODELS = ("swin_tiny", "a_swin_tiny", "swinv2_tiny", "a_swinv2_tiny")


def main() -> int:
    given, more = record.options(__doc__, "camvid", models=MODELS).parse_known_args()
    same = ["--data.path", given.data, "--seed", str(given.seed), "--log.tensorboard", "false"]

    def finished(name: str) -> None:
        summary, log = record.training_run(given.work / name)
        kept = ("config", "data", "steps", "seconds", "best_mean_iou", "evaluation")
        result = {"model": name, **{key: summary[key] for key in kept}, "log": log}
        record.write(f"camvid_{name}", result, given.seed)

    places = {name: ["--config", f"camvid/{name}", "--output", str(given.work / name)] for name in given.models}
    jobs = {name: training([*place, *same], more) for name, place in places.items()}
    return run_jobs(jobs, given.work, 1, 0, finished)


if __name__ == "__main__":
    sys.exit(main())
