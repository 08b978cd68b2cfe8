"""Are choices and values bit-identical under circular shifts here: on this CPU, and on CUDA if there is one?

    python benchmarks/exactness.py --shifts 64
    python benchmarks/exactness.py --shifts all --size 56 --cpu --workers 8

Runs every layer of the tests on all hostile images and the photographs, on CUDA with TF32 on and off, under bf16
autocast and compiled into one graph.
"""

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import record
import torch

sys.path.insert(0, str(record.ROOT / "tests"))
from layer_zoo import make_layers

from trueshift.testing import assert_equivariant, hostile_images, photographs

COMPILED = ("tokenize", "tokenize, overlapping", "align", "merge, norm before", "merge, convolution", "stages")
PLAIN = {"device": "cpu", "tf32": False, "autocast": False, "compiled": False}


def settings(cpu_only: bool) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {f"{record.processor()}, float32": PLAIN}
    if torch.cuda.is_available() and not cpu_only:
        name, gpu = torch.cuda.get_device_name(), {**PLAIN, "device": "cuda"}
        found[f"{name}, float32"] = gpu
        found[f"{name}, TF32"] = {**gpu, "tf32": True}
        found[f"{name}, bf16 autocast"] = {**gpu, "autocast": True}
        found[f"{name}, float32, compiled"] = {**gpu, "compiled": True}
        found[f"{name}, bf16 autocast, compiled"] = {**gpu, "autocast": True, "compiled": True}
    return found


def prepared(layer: torch.nn.Module, device: str, tf32: bool, autocast: bool, compiled: bool) -> Callable[[Any], Any]:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    run = torch.compile(layer, fullgraph=True) if compiled else layer

    def call(x: torch.Tensor) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            return run(x)

    return call


def images(size: int) -> torch.Tensor:
    named = {name: image for name, image in hostile_images(size).items() if name != "huge"} | photographs(size)
    return torch.stack(list(named.values()))


@torch.no_grad()
def check(
    work: tuple[str, torch.Tensor], size: int, shifts: int | str, seed: int, options: dict[str, Any]
) -> str | None:
    """What is wrong with this layer on these images, if anything."""
    name, batch = work
    torch.manual_seed(seed)
    torch.compiler.reset()
    layer = make_layers(size)[name]().eval().to(options["device"])
    try:
        assert_equivariant(prepared(layer, **options), batch.to(options["device"]), shifts=shifts)
    except AssertionError as error:
        return str(error)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shifts", default="64", help="how many random ones, or all")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="leave CUDA alone")
    parser.add_argument("--workers", type=int, default=0, help="check CPU layers in this many processes of one thread")
    parser.add_argument("--core", action="store_true", help="only the layers that are also compiled")
    parser.add_argument("--name", default=None, help="results/NAME.json; exactness_cuda or exactness_cpu if not given")
    arguments = parser.parse_args()
    shifts = "all" if arguments.shifts == "all" else int(arguments.shifts)
    batch = images(arguments.size)
    each = len(batch) * (arguments.size**2 if shifts == "all" else shifts)
    rows = []
    for where, options in settings(arguments.cpu).items():
        names = COMPILED if options["compiled"] or arguments.core else tuple(make_layers(arguments.size))
        job = partial(check, size=arguments.size, shifts=shifts, seed=arguments.seed, options=options)
        if options["device"] == "cpu" and arguments.workers:
            with ProcessPoolExecutor(arguments.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                work = [(name, some) for some in batch.split(16) for name in names]
                messages = list(pool.map(job, work))
        else:
            work = [(name, batch) for name in names]
            messages = [job(item) for item in work]
        failed = {item[0]: message for item, message in zip(work, messages, strict=True) if message}
        kind = f"{len(names)} layers, {arguments.size} pixels, " + (
            "all shifts" if shifts == "all" else f"{shifts} shifts"
        )
        rows.append(
            {"where": where, "checks": kind, "pairs": each * len(names), "failures": len(failed), "failed": failed}
        )
        print(
            f"{where}: {len(failed)} of {kind} fail over {rows[-1]['pairs']:,} pairs",
            *failed.items(),
            sep="\n",
            flush=True,
        )
    name = arguments.name or ("exactness_cuda" if torch.cuda.is_available() else "exactness_cpu")
    print(
        "written to",
        record.write(name, {"size": arguments.size, "rows": rows}, arguments.seed).relative_to(record.ROOT),
    )


if __name__ == "__main__":
    main()
