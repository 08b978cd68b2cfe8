"""Are choices and values bit-identical under circular shifts here: on this CPU, and on CUDA if there is one?

    python benchmarks/exactness.py --shifts 64

Runs every layer of the tests on all hostile images and the photographs, on CUDA with TF32 on and off, under bf16
autocast and compiled into one graph.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import record
import torch

sys.path.insert(0, str(record.ROOT / "tests"))
from layer_zoo import make_layers

from trueshift.testing import assert_equivariant, hostile_images, photographs

COMPILED = ("tokenize", "tokenize, overlapping", "align", "merge, norm before", "merge, convolution", "stages")


def settings() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {f"{record.processor()}, float32": {"device": "cpu"}}
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        found[f"{name}, float32"] = {"device": "cuda"}
        found[f"{name}, TF32"] = {"device": "cuda", "tf32": True}
        found[f"{name}, bf16 autocast"] = {"device": "cuda", "autocast": True}
        found[f"{name}, float32, compiled"] = {"device": "cuda", "compiled": True}
        found[f"{name}, bf16 autocast, compiled"] = {"device": "cuda", "autocast": True, "compiled": True}
    return found


def prepared(layer: torch.nn.Module, device: str, tf32: bool, autocast: bool, compiled: bool) -> Callable[[Any], Any]:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    run = torch.compile(layer, fullgraph=True) if compiled else layer

    def call(x: torch.Tensor) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            return run(x)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shifts", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default=None, help="results/NAME.json; exactness_cuda or exactness_cpu if not given")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    size = arguments.size
    images = {name: image for name, image in hostile_images(size).items() if name != "huge"} | photographs(size)
    batch = torch.stack(list(images.values()))
    rows = []
    for where, setting in settings().items():
        options = {"tf32": False, "autocast": False, "compiled": False, **setting}
        layers = make_layers(size)
        names = COMPILED if options["compiled"] else tuple(layers)
        failures = []
        for name in names:
            torch.manual_seed(arguments.seed)
            layer = layers[name]().eval().to(options["device"])
            torch.compiler.reset()
            try:
                assert_equivariant(prepared(layer, **options), batch.to(options["device"]), shifts=arguments.shifts)
            except AssertionError as error:
                failures.append({"layer": name, "message": str(error)})
                print(where, name, error, flush=True)
        pairs = len(names) * len(batch) * arguments.shifts
        rows.append(
            {
                "where": where,
                "checks": f"{len(names)} layers",
                "pairs": pairs,
                "failures": len(failures),
                "failed": failures,
            }
        )
        print(f"{where}: {len(failures)} of {len(names)} layers fail over {pairs} pairs", flush=True)
    name = arguments.name or ("exactness_cuda" if torch.cuda.is_available() else "exactness_cpu")
    print("written to", record.write(name, {"size": size, "rows": rows}, arguments.seed).relative_to(record.ROOT))


if __name__ == "__main__":
    main()
