"""Images shared out among processes give the very same numbers as one process that sees them all."""

import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from unchecked import run_unchecked

from trueshift.eval.metrics.consistency import (
    BitExactFraction,
    FlickerRate,
    LargestLogitChange,
    MeanIoU,
    SegmentationConsistency,
    ShiftConsistency,
    TopOne,
    WorstCaseAccuracy,
    WorstCaseConsistency,
)

IMAGES = 11
# from which image to which each process reads: uneven, and some without any
SHARES = {2: ((0, 8, 11), (0, 11, 11)), 3: ((0, 1, 7, 11), (0, 4, 4, 11), (0, 0, 0, 11))}


def every_metric():
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (IMAGES, 4), generator=random)
    target = torch.randint(2, (IMAGES,), generator=random)
    logits = torch.randint(3, (IMAGES, 4, 2), generator=random) * torch.arange(1, IMAGES + 1).view(-1, 1, 1) / 7
    maps = torch.randint(4, (IMAGES, 3, 5, 6), generator=random)
    masks = torch.randint(4, (IMAGES, 5, 6), generator=random)
    covered = torch.rand(IMAGES, 3, 5, 6, generator=random) < 0.8
    labels[::4] = target[::4, None]
    return {
        "top one": (TopOne, (labels[:, 0], target)),
        "consistency": (ShiftConsistency, (labels,)),
        "against first": (partial(ShiftConsistency, against_first=True), (labels,)),
        "worst consistency": (WorstCaseConsistency, (labels,)),
        "worst accuracy": (WorstCaseAccuracy, (labels, target)),
        "bit exact": (BitExactFraction, (logits,)),
        "largest change": (LargestLogitChange, (logits,)),
        "flicker": (FlickerRate, (labels,)),
        "mean iou": (partial(MeanIoU, 4, ignore_index=3), (maps[:, 0], masks)),
        "masks": (SegmentationConsistency, (maps,)),
        "covered masks": (SegmentationConsistency, (maps, covered)),
    }


def numbers(start, end):
    """All that each metric tells of these images; one image at a time, as uneven updates are the harder case."""
    told = {}
    for name, (make, inputs) in every_metric().items():
        metric = make()
        for image in range(start, end):
            metric.update(*(values[image : image + 1] for values in inputs))
        told[name] = [metric.compute().item()]
        if hasattr(metric, "interval"):
            told[name] += metric.interval()
        if hasattr(metric, "by_class"):
            told[name] += metric.by_class().nan_to_num(-1).tolist()
        # meeting the others must leave a process its own share, to go on from
        told[name].append(metric.compute().item())
        metric.update(*(values[:1] for values in inputs))
        told[name].append(metric.compute().item())
    return told


def work(rank, folder):
    torch.set_num_threads(1)
    for processes, shares in SHARES.items():
        if rank >= processes:
            continue
        dist.init_process_group("gloo", init_method=f"file://{folder}/{processes}", rank=rank, world_size=processes)
        told = [numbers(*list(pairwise(share))[rank]) for share in shares]
        torch.save(told, f"{folder}/told_{processes}_{rank}")
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    # a process that forks: three that import take 15 seconds, and pytest itself has threads
    folder = tmp_path_factory.mktemp("meet")
    run_unchecked(Path(__file__), str(folder))
    return {
        (processes, rank): torch.load(folder / f"told_{processes}_{rank}")
        for processes in SHARES
        for rank in range(processes)
    }


@pytest.mark.parametrize(("processes", "rank"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_every_process_tells_what_one_alone_would(told, processes, rank):
    for share in told[processes, rank]:
        for name, (make, inputs) in every_metric().items():
            alone = make()
            alone.update(*inputs)
            expected = [alone.compute().item()]
            if hasattr(alone, "interval"):
                expected += alone.interval()
            if hasattr(alone, "by_class"):
                expected += alone.by_class().nan_to_num(-1).tolist()
            expected.append(expected[0])
            for _ in range(processes):  # each has added the first image once more
                alone.update(*(values[:1] for values in inputs))
            expected.append(alone.compute().item())
            assert share[name] == expected, name


def test_the_numbers_differ_from_those_of_a_part():
    # else a process that never met the others would pass
    for name, (make, inputs) in every_metric().items():
        whole, part = make(), make()
        whole.update(*inputs)
        part.update(*(values[:8] for values in inputs))
        assert whole.compute() != part.compute(), name


if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, (sys.argv[1],), nprocs=max(SHARES), start_method="fork")
