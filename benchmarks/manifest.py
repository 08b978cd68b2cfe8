"""Every table of the documents: the command that measures it, the result files it is made from, and what writes it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import benchmarks.accuracy.fields as fields
import benchmarks.accuracy.tables as accuracy
import benchmarks.exactness.tables as exactness
import benchmarks.speed.tables as speed


class Table(NamedTuple):
    """A program under ``benchmarks/`` with its options, patterns of files in ``results/``, and a function."""

    command: str
    results: str
    render: Callable[[], str]


MODEL_SPEED, SPEED_RESULTS = "speed/model_speed.py --name model_speed_", "model_speed_*.json"
MODULES_SPEED, MODULES_RESULTS = "speed/modules_speed.py", "modules_speed_*.json"
MEMORY = f"{MODEL_SPEED}memory --batch 64 --work inference training --rounds 0"
RESOLUTION = f"{MODEL_SPEED}resolution --models swin --mode eager graph --size 224 448 896 --same-area"
CIFAR = "accuracy/cifar.py --data data/cifar10 --runs"
SMALL = f"{CIFAR} * shipped/* --seeds 0 1 2 --jobs 8"
PAPER_SIZE = (
    f"{CIFAR} cifar10/*_circular cifar10/*_standard --jobs 1 --override batch_size=256 evaluate.every_epochs=10 "
    "evaluate.protocols=[circular,cifar-standard]"
)
SMALL_RESULTS = "cifar10_small.csv cifar10_small/*.json"
BIT_IDENTITY = "exactness/bit_identity.py"
EXACT_SEGMENTATION = "segmentation_exactness_cuda.json"
DECODER = "speed/model_speed.py --part decoder --models swin swinv2 --batch 16 --work inference training"
OTHERS = "vit dinov2 torchvision_swin transformers_swin"
ADAPTED_SPEED = f"speed/model_speed.py --models {OTHERS} --name adapted_speed --mode eager compiled"
TABLES = {
    "speed_summary": Table(f"{MODEL_SPEED}compiled --mode compiled", SPEED_RESULTS, speed.summary),
    "speed_inference": Table(f"{MODEL_SPEED}eager --precision bf16 tf32", SPEED_RESULTS, speed.inference),
    "speed_latency": Table(f"{MODEL_SPEED}latency --batch 1 --mode graph", SPEED_RESULTS, speed.latency),
    "speed_training": Table(
        f"{MODEL_SPEED}training --work training --batch 256 --mode compiled", SPEED_RESULTS, speed.training
    ),
    "speed_memory": Table(MEMORY, SPEED_RESULTS, speed.memory),
    "speed_modules": Table(f"{MODULES_SPEED} --mode eager graph", MODULES_RESULTS, speed.modules),
    "speed_modules_cpu": Table(f"{MODULES_SPEED} --device cpu", MODULES_RESULTS, partial(speed.modules, "cpu")),
    "speed_resolution": Table(RESOLUTION, SPEED_RESULTS, speed.resolution),
    "speed_cpu": Table(f"{MODEL_SPEED}cpu --device cpu", SPEED_RESULTS, speed.cpu),
    "segmentation_speed": Table(DECODER, "segmentation_speed_*.json", speed.segmentation),
    "training_speed": Table(
        "speed/training_speed.py --data data/cifar10 --evaluate", "training_speed_*.json", speed.trainer
    ),
    "graph_speed": Table("speed/graph_speed.py", "graph_speed.json", speed.graphed_steps),
    "speed_adapted": Table(ADAPTED_SPEED, "adapted_speed.json", speed.adapted),
    "audit_overhead": Table("speed/audit_overhead.py --device cuda", "audit_overhead_*.json", speed.audit),
    "exactness": Table(f"{BIT_IDENTITY} layers --shifts 64", "exactness_*.json", exactness.layers),
    "model_exactness": Table(f"{BIT_IDENTITY} models --shifts 8", "model_exactness_*.json", exactness.models),
    "segmentation_exactness": Table(
        f"{BIT_IDENTITY} segmentation --shifts 4 --places cuda-float32", EXACT_SEGMENTATION, exactness.segmentation
    ),
    "without_anchor": Table("exactness/without_anchor.py", "without_anchor_*.json", exactness.without_anchor),
    "frame_stability": Table("exactness/frame_stability.py", "frame_stability.json", exactness.frame_stability),
    "sample_consistency": Table(
        "exactness/sample_consistency.py --device cuda", "sample_consistency_cuda.json", exactness.sample_consistency
    ),
    "camvid": Table("accuracy/camvid.py --data data/camvid", "camvid_*.json", accuracy.camvid),
    **{
        f"fields_{task}": Table(
            f"accuracy/fields.py --task {task} --seeds 0 1 2 --jobs 6",
            f"fields_{task}_*.json",
            partial(fields.table, task),
        )
        for task in fields.TASKS
    },
    "paper_size": Table(PAPER_SIZE, "cifar10.csv cifar10/*.json", accuracy.paper_size),
    **{f"small_{name}": Table(SMALL, SMALL_RESULTS, render) for name, render in accuracy.trained_tables.items()},
    **{
        f"small_{name}": Table(f"{SMALL} --measure-only", SMALL_RESULTS, render)
        for name, render in accuracy.measured_tables.items()
    },
    "tried": Table(f"{CIFAR} shipped/* --seeds 0 --compile", "tried_crops_cutmix.json", accuracy.tried),
    **{
        f"motion_{where}": Table(
            f"accuracy/motion.py --family swin {data}", f"motion_{where}_*.json", partial(accuracy.motion, where)
        )
        for where, data in (("cifar10", "--data data/cifar10"), ("photos", "--photos data/photos"))
    },
}
