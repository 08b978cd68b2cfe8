"""What does the equivariant decoder of UperNet cost beside the ordinary one, in time and in memory?

    python -m benchmarks.speed.segmentation_speed --backbones swin swinv2 --batch 16 --classes 150

Side by side in one process, round by round. Both decoders get features of the same shapes that were computed before,
so the backbone is not in it; everything behind it is: the frame, pooling, all convolutions, logits at full resolution
in the frame of the image (inference), or the loss, the gradient down to the features and an SGD step (training). bf16
is autocast. Memory is the peak that a pass adds, plus the decoder's weights.
"""

import argparse
from functools import partial
from itertools import product

import torch
from torch import Tensor

import trueshift as ts
from benchmarks.common import record, timing
from trueshift.ops.geometry.grid import Tokens

BACKBONES = {"swin": ("swin_tiny", 448), "swinv2": ("swinv2_tiny", 512)}


def decoder_alone(name: str, size: int, batch: int, classes: int, device: str) -> tuple[ts.UperNet, Tensor]:
    """A network whose backbone gives features from before, and the images it gives them for."""
    torch.manual_seed(0)
    net = ts.UperNet(name, classes, img_size=size, padding=None).to(device)
    images = torch.randn(batch, 3, size, size, device=device)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        features = net.encoder.eval().features(images)

    def before(x: Tensor) -> tuple[Tokens, ...]:
        return tuple(Tokens(tokens.values.detach().requires_grad_(net.training), tokens.grid) for tokens in features)

    net.encoder.features = before  # type: ignore[method-assign]
    return net, images


def measure(family: str, given: argparse.Namespace, work: str) -> dict:
    name, size = BACKBONES[family]
    runs, memory = {}, {}
    for kind, full in (("ordinary", name), ("equivariant", f"a_{name}")):
        net, images = decoder_alone(full, size, given.batch, given.classes, given.device)
        masks = torch.randint(given.classes, (given.batch, size, size), device=given.device)
        call = partial(net.train(work == "training"), images)
        run = timing.inference(call, given.device)
        if work == "training":
            parts = (net.decoder, net.segmentation_head, net.auxiliary_head)
            optimizer = torch.optim.SGD([weight for part in parts for weight in part.parameters()], lr=1e-4)
            run = timing.training(partial(call, masks), optimizer, given.device)
        for _ in range(3):
            run()
        if given.device == "cuda":
            memory[kind] = timing.peak_memory(run, net.decoder.parameters())["allocated_mib"]
        runs[kind] = run
    times = timing.interleaved(runs, given.rounds, given.device == "cuda", round_s=0.3)
    middle, quartiles = timing.ratio(times["equivariant"], times["ordinary"])
    return {
        "backbone": name,
        "size": size,
        "batch": given.batch,
        "classes": given.classes,
        "work": work,
        "milliseconds": {kind: 1000 * timing.spread(taken)[0] for kind, taken in times.items()},
        "time_ratio": middle,
        "quartiles": quartiles,
        "memory_ratio": memory["equivariant"] / memory["ordinary"] if memory else None,
        "seconds": times,
    }


def main() -> None:
    given = record.options(
        __doc__,
        backbones={"choices": tuple(BACKBONES), "default": list(BACKBONES)},
        work={"choices": ("inference", "training"), "default": ["inference", "training"]},
        batch=16,
        classes=150,
        rounds=9,
        device="cuda" if torch.cuda.is_available() else "cpu",
        name=None,
    ).parse_args()
    timing.set_precision("bf16")
    found = []
    for work, family in product(given.work, given.backbones):
        found.append(measure(family, given, work))
        print({key: value for key, value in found[-1].items() if key != "seconds"}, flush=True)
        record.write(given.name or f"segmentation_speed_{given.device}", {"rows": found}, 0)


if __name__ == "__main__":
    main()
