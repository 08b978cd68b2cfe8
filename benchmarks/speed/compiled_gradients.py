"""Are the gradients of a compiled network those of the network itself, and what does a step take?

python -m benchmarks.speed.compiled_gradients     # on a GPU; --device cpu --batch 2 --models swin_mini

`default` compiles as torch does (with the network's own random numbers), `safe` as `trueshift train` does. A parameter
is wrong where the gradient in bf16 is farther from the float32 one than five times the eager network's own rounding.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueshift
from benchmarks.common import record, timing
from benchmarks.common.package import compiled, otherwise_if_constant, weights_moved

KINDS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "default": lambda model: torch.compile(model, options={"fallback_random": True}),
    "safe": compiled,
}
SEED = 0


def measure(name: str, arguments: dict[str, Any], kind: str, device: str, batch: int, rounds: int) -> dict[str, Any]:
    """One network, run in one way."""
    torch.manual_seed(SEED)
    torch.compiler.reset()
    model = trueshift.create_model(name, num_classes=10, **arguments).to(device).train()
    images, labels = torch.randn(batch, 3, 32, 32, device=device), torch.arange(batch, device=device) % 10
    run = KINDS[kind](model)

    def gradients(network: Any, bf16: bool = True) -> dict[str, Tensor]:
        model.zero_grad()
        torch.manual_seed(SEED)  # so that random depth is the same in all
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        return {name: value.grad.float().clone() for name, value in model.named_parameters() if value.grad is not None}

    with weights_moved(model, otherwise_if_constant):
        truth, own, found = gradients(model, bf16=False), gradients(model), gradients(run)
    wrong = [name for name in truth if _error(found, truth, name) > 5 * _error(own, truth, name) + 0.05]
    optimizer, cuda = torch.optim.AdamW(model.parameters(), lr=1e-4), device == "cuda"
    optimizer.zero_grad()
    step = timing.training(lambda: F.cross_entropy(run(images), labels), optimizer, device)
    seconds = [timing.seconds(step, 20 if cuda else 1, cuda) for _ in range(rounds + 1)][1:]
    milliseconds = [round(1e3 * each, 3) for each in seconds]
    return {"model": name, "kind": kind, "parameters": len(truth), "wrong": len(wrong), "milliseconds": milliseconds}


def _error(found: dict[str, Tensor], truth: dict[str, Tensor], name: str) -> float:
    return ((found[name] - truth[name]).norm() / (truth[name].norm() + 1e-12)).item()


def main() -> None:
    given = record.options(
        __doc__,
        models=["swin_mini", "swinv2_mini"],
        criterion={"help": "by which adaptive networks choose, e.g. learned (then without its noise)"},
        drop_path={"default": 0.1, "help": "random depth, as recipes have it"},
        kinds={"choices": list(KINDS), "default": list(KINDS)},
        device={"default": "cuda", "choices": ["cuda", "cpu"]},
        batch=512,
        rounds=7,
        name="compiled_gradients",
    ).parse_args()
    criterion = {"name": "learned", "noise": False} if given.criterion == "learned" else given.criterion
    arguments = {"drop_path_rate": given.drop_path} | ({"criterion": criterion} if criterion else {})
    rows = []
    for name in given.models:
        for kind in given.kinds:
            rows.append(measure(name, arguments, kind, given.device, given.batch, given.rounds))
            print(rows[-1], flush=True)
            result = {"batch": given.batch, "precision": "bf16", **arguments, "rows": rows}
            record.write(given.name, result, seed=SEED)


if __name__ == "__main__":
    main()
