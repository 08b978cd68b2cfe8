"""Every table of the documents: the command that measures it, the result files it is made from, and what writes it."""

from collections.abc import Callable
from typing import NamedTuple

import benchmarks.accuracy.tables as accuracy
import benchmarks.exactness.tables as exactness
import benchmarks.speed.tables as speed


class Table(NamedTuple):
    """A program under ``benchmarks/`` with its options, patterns of files in ``results/``, and a function."""

    command: str
    results: str
    render: Callable[[], str]


MODEL_SPEED = "speed/model_speed.py --name model_speed_"
SMALL = "accuracy/cifar.py --runs * shipped/* --seeds 0 1 2 --jobs 8 --data data/cifar10"
MEASURED = f"{SMALL} --measure-only"
SMALL_RESULTS = "cifar10_small.csv cifar10_small/*.json"
TRAINED = [accuracy.summary, accuracy.circular, accuracy.standard, accuracy.longer, accuracy.ablation]
TRAINED += [accuracy.criterion, accuracy.shipped, accuracy.curves]
MEASURED_LATER = [accuracy.switched_off, accuracy.erased, accuracy.flips, accuracy.magnitude, accuracy.adapted]
MEASURED_LATER += [accuracy.canonical, accuracy.exactness, accuracy.magnitude_picture]
TABLES = {
    "speed_summary": Table(f"{MODEL_SPEED}compiled --mode compiled", "model_speed_*.json", speed.summary),
    "speed_inference": Table(
        f"{MODEL_SPEED}eager --mode eager --precision bf16 tf32", "model_speed_*.json", speed.inference
    ),
    "speed_latency": Table(f"{MODEL_SPEED}latency --batch 1 --mode graph", "model_speed_*.json", speed.latency),
    "speed_training": Table(
        f"{MODEL_SPEED}training --work training --batch 256 --mode compiled",
        "model_speed_*.json",
        speed.training,
    ),
    "speed_memory": Table(
        f"{MODEL_SPEED}memory --batch 64 --work inference training --rounds 0", "model_speed_*.json", speed.memory
    ),
    "speed_modules": Table("speed/modules_speed.py --mode eager graph", "modules_speed_*.json", speed.modules),
    "speed_modules_cpu": Table("speed/modules_speed.py --device cpu", "modules_speed_*.json", speed.modules_cpu),
    "speed_resolution": Table(
        f"{MODEL_SPEED}resolution --models swin --mode eager graph --size 224 448 896 --same-area",
        "model_speed_*.json",
        speed.resolution,
    ),
    "speed_cpu": Table(f"{MODEL_SPEED}cpu --device cpu", "model_speed_*.json", speed.cpu),
    "segmentation_speed": Table(
        "speed/segmentation_speed.py --rounds 5", "segmentation_speed_cuda.json", speed.segmentation
    ),
    "training_speed": Table(
        "speed/training_speed.py --data data/cifar10 --evaluate", "training_speed_*.json", speed.trainer
    ),
    "audit_overhead": Table("speed/audit_overhead.py --device cuda", "audit_overhead_*.json", speed.audit),
    "exactness": Table("exactness/layers.py --shifts 64", "exactness_*.json", exactness.layers),
    "model_exactness": Table("exactness/models.py --shifts 8", "model_exactness_*.json", exactness.models),
    "segmentation_exactness": Table(
        "exactness/segmentation.py --shifts 4", "segmentation_exactness_cuda.json", exactness.segmentation
    ),
    "without_anchor": Table(
        "exactness/without_anchor.py --shifts 8", "without_anchor_*.json", exactness.without_anchor
    ),
    "frame_stability": Table("exactness/frame_stability.py", "frame_stability.json", exactness.frame_stability),
    "sample_consistency": Table(
        "exactness/sample_consistency.py --device cuda", "sample_consistency_cuda.json", exactness.sample_consistency
    ),
    "camvid": Table("accuracy/camvid.py --data data/camvid", "camvid_*.json", accuracy.camvid),
    "paper_size": Table(
        "accuracy/cifar.py --runs cifar10/*_circular cifar10/*_standard --jobs 1 --data data/cifar10 --override "
        "batch_size=256 evaluate.every_epochs=10 evaluate.protocols=[circular,cifar-standard]",
        "cifar10.csv cifar10/*.json",
        accuracy.paper_size,
    ),
    "random_grids": Table(
        "accuracy/cifar.py --runs *_random_grids *_da_circular --seeds 0 1 2 --jobs 8 --data data/cifar10",
        SMALL_RESULTS,
        accuracy.random_grids,
    ),
    **{f"small_{render.__name__}": Table(SMALL, SMALL_RESULTS, render) for render in TRAINED},
    **{f"small_{render.__name__}": Table(MEASURED, SMALL_RESULTS, render) for render in MEASURED_LATER},
}
