"""Images shared out among processes give the very same numbers as one process that sees them all."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from known_metrics import every_metric
from unchecked import run_unchecked

IMAGES = 11
# from which image to which each process reads: uneven, and some without any
SHARES = {2: ((0, 8, 11), (0, 11, 11)), 3: ((0, 1, 7, 11), (0, 4, 4, 11), (0, 0, 0, 11))}


def reported(metric):
    """All that a metric reports."""
    interval = metric.interval() if hasattr(metric, "interval") else ()
    by_class = metric.by_class().nan_to_num(-1).tolist() if hasattr(metric, "by_class") else ()
    return [metric.compute().item(), *interval, *by_class]


def numbers(start, end):
    """The reports on these images; one image at a time, as uneven updates are the harder case."""
    found = {}
    for name, (make, inputs) in every_metric(IMAGES).items():
        metric = make()
        for image in range(start, end):
            metric.update(*(values[image : image + 1] for values in inputs))
        found[name] = reported(metric)
        # synchronising must leave a process its own share, to continue from
        found[name].append(metric.compute().item())
        metric.update(*(values[:1] for values in inputs))
        found[name].append(metric.compute().item())
    return found


def work(rank, folder):
    torch.set_num_threads(1)
    for processes, shares in SHARES.items():
        if rank >= processes:
            continue
        dist.init_process_group("gloo", init_method=f"file://{folder}/{processes}", rank=rank, world_size=processes)
        reports = [numbers(*list(pairwise(share))[rank]) for share in shares]
        torch.save(reports, f"{folder}/report_{processes}_{rank}")
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    # a process that forks: three that import take 15 seconds, and pytest itself has threads
    folder = tmp_path_factory.mktemp("meet")
    run_unchecked(Path(__file__), str(folder))
    return {
        (processes, rank): torch.load(folder / f"report_{processes}_{rank}")
        for processes in SHARES
        for rank in range(processes)
    }


@pytest.mark.parametrize(("processes", "rank"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_every_process_tells_what_one_alone_would(reports, processes, rank):
    for share in reports[processes, rank]:
        for name, (make, inputs) in every_metric(IMAGES).items():
            alone = make()
            alone.update(*inputs)
            expected = reported(alone)
            expected.append(expected[0])
            for _ in range(processes):  # each has added the first image once more
                alone.update(*(values[:1] for values in inputs))
            expected.append(alone.compute().item())
            assert share[name] == expected, name


def test_the_numbers_differ_from_those_of_a_part():
    # else a process that never met the others would pass
    for name, (make, inputs) in every_metric(IMAGES).items():
        whole, part = make(), make()
        whole.update(*inputs)
        part.update(*(values[:8] for values in inputs))
        assert whole.compute() != part.compute(), name


if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, (sys.argv[1],), nprocs=max(SHARES), start_method="fork")
