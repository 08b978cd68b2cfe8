"""Are choices and values of every layer bit-identical under circular shifts, on this CPU and on CUDA if there is one?

    python -m benchmarks.exactness.layers --shifts 64
    python -m benchmarks.exactness.layers --shifts all --size 56 --cpu --workers 8

All layers of the tests on hostile images and photographs; on CUDA with TF32 on and off, under bf16 autocast, compiled.
"""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch

from benchmarks.common import record
from benchmarks.common.checks import images, make_layers, prepared, settings
from trueshift.testing import assert_equivariant

COMPILED = ("tokenize", "tokenize, overlapping", "align", "merge, norm before", "merge, convolution", "stages")


@torch.no_grad()
def check(
    work: tuple[str, torch.Tensor], size: int, shifts: int | str, seed: int, options: dict[str, Any]
) -> str | None:
    """What is wrong with this layer on these images, if anything."""
    name, batch = work
    torch.manual_seed(seed)
    layer = make_layers(size)[name]().eval().to(options["device"])
    try:
        assert_equivariant(prepared(layer, **options), batch.to(options["device"]), shifts=shifts)
    except AssertionError as error:
        return str(error)
    return None


def main() -> None:
    given = record.options(
        __doc__,
        shifts={"default": "64", "help": "how many random ones, or all"},
        size=32,
        seed=0,
        cpu={"default": False, "help": "leave CUDA alone"},
        workers={"default": 0, "help": "check CPU layers in this many processes of one thread"},
        core={"default": False, "help": "only the layers that are also compiled"},
        name={"help": "results/NAME.json; exactness_cuda or exactness_cpu if not given"},
    ).parse_args()
    shifts = "all" if given.shifts == "all" else int(given.shifts)
    batch = images((given.size, given.size))
    each = len(batch) * (given.size**2 if shifts == "all" else shifts)
    rows = []
    for where, options in settings(given.cpu).items():
        names = COMPILED if options["compiled"] or given.core else tuple(make_layers(given.size))
        job = partial(check, size=given.size, shifts=shifts, seed=given.seed, options=options)
        if options["device"] == "cpu" and given.workers:
            work = [(name, some) for some in batch.split(16) for name in names]
            with ProcessPoolExecutor(given.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                messages = list(pool.map(job, work))
        else:
            work = [(name, batch) for name in names]
            messages = [job(item) for item in work]
        failed = {item[0]: message for item, message in zip(work, messages, strict=True) if message}
        kind = f"{len(names)} layers, {given.size} pixels, {shifts} shifts"
        pairs, count = each * len(names), len(failed)
        rows.append({"where": where, "checks": kind, "pairs": pairs, "failures": count, "failed": failed})
        said = f"{where}: {count} of {kind} fail over {pairs:,} pairs"
        print(said, *failed.items(), sep="\n", flush=True)
    name = given.name or ("exactness_cuda" if torch.cuda.is_available() else "exactness_cpu")
    print("written to", record.write(name, {"size": given.size, "rows": rows}, given.seed).relative_to(record.ROOT))


if __name__ == "__main__":
    main()
