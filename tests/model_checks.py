"""The shift law of whole models, without placing tokens on pixels: what an anchored network promises is more."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trueshift import circular_shift
from trueshift.ops.geometry.shift import IMAGE_DIMS

Forward = Callable[[Tensor], tuple[Tensor, list[Tensor], list[Tensor]]]


@dataclass(frozen=True)
class Broken:
    """One pair of image and shift for which the law does not hold."""

    image: int
    shift: tuple[int, int]
    what: str


def narrow(name: str) -> dict[str, int | tuple[int, ...]]:
    """A quarter of the channels of a mini: the same geometry in a fraction of the time."""
    return {"embed_dim": 16 if "swin" in name else (16, 32, 64)}


def everything(model: nn.Module) -> Forward:
    """A function from images to logits, values and origins of all stages, in one pass."""

    def forward(x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        stages = model.features(x)
        logits = model.forward_head(model.finish(stages[-1]))
        return logits, [tokens.values for tokens in stages], [tokens.grid.origin for tokens in stages]

    return forward


def perturb_norms(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random affine parameters and statistics for every norm: as after training, tokens no longer have one energy."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
            with torch.no_grad():
                for parameter in (module.weight, module.bias):
                    parameter += 0.3 * torch.randn(parameter.shape, generator=generator).to(parameter)
                if isinstance(module, nn.BatchNorm2d):
                    shape = parameter.shape
                    module.running_mean += 0.1 * torch.randn(shape, generator=generator).to(parameter)
                    module.running_var *= 0.5 + torch.rand(shape, generator=generator).to(parameter)
    return model


def loss_and_gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    """While training, of a copy: batch statistics move on."""
    copy = deepcopy(model).train()
    loss = copy(x).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, list(copy.parameters()))]


def random_shifts(images: Tensor, count: int, seed: int = 0) -> Iterator[Tensor]:
    """Shifts ``[B, 2]``, another one for every image."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        rows = torch.randint(images.shape[2], (len(images), 1), generator=generator)
        columns = torch.randint(images.shape[3], (len(images), 1), generator=generator)
        yield torch.cat([rows, columns], 1)


def all_shifts(copies: Tensor) -> Iterator[Tensor]:
    """Every shift of one image, of which the batch holds copies: as many shifts at a time as there are copies."""
    rows, columns = torch.meshgrid(torch.arange(copies.shape[2]), torch.arange(copies.shape[3]), indexing="ij")
    yield from torch.stack([rows.flatten(), columns.flatten()], 1).split(len(copies))


def column_shifts(images: Tensor, step: int = 1) -> Iterator[Tensor]:
    """Every shift of the columns, or every ``step``-th, for all images at a time."""
    for column in range(0, images.shape[3], step):
        yield torch.tensor([0, column]).expand(len(images), 2)


@torch.no_grad()
def broken_pairs(forward: Forward, images: Tensor, shifts: Iterator[Tensor]) -> tuple[list[Broken], int]:
    """Where logits or features change with a shift, or tokens do not move with the image; and how many were checked.

    After an anchored tokenizer the values themselves are the same for every shift, and the origins move by it, which
    implies ``place(features(S x)) == S place(features(x))``. An image that repeats may be anchored at any period.
    """
    logits, values, origins = forward(images)
    size = torch.tensor(images.shape[2:], device=images.device)
    broken, pairs = [], 0
    for shift in shifts:
        offset = shift.to(images.device)
        moved = circular_shift(images, offset, IMAGE_DIMS)
        logits_moved, values_moved, origins_moved = forward(moved)
        problems = {"logits": _differ(logits, logits_moved)}
        for stage, (before, after) in enumerate(zip(values, values_moved, strict=True)):
            problems[f"values of stage {stage}"] = _differ(before, after)
        away = [(before - offset - after) % size for before, after in zip(origins, origins_moved, strict=True)]
        unmoved = torch.stack([(part != 0).any(1) for part in away]).any(0)
        for index in unmoved.nonzero().flatten().tolist():
            period = away[0][[index]]
            repeats = torch.equal(circular_shift(images[[index]], period, IMAGE_DIMS), images[[index]])
            together = all(torch.equal(part[index], away[0][index]) for part in away)
            unmoved[index] = not (repeats and together)
        problems["origins"] = unmoved
        pairs += len(images)
        for what, wrong in problems.items():
            broken += [
                Broken(index, tuple(shift[index].tolist()), what) for index in wrong.nonzero().flatten().tolist()
            ]
    return broken, pairs


def _differ(before: Tensor, after: Tensor) -> Tensor:
    """Which images differ in any bit that counts; NaN differs from everything, so a broken network cannot pass."""
    return (before != after).flatten(1).any(1)
