"""A compiler that fails, or is wrong, costs a run nothing but its speed."""

import pytest
import torch
from torch import nn
from training_runs import learn, log, same, weights
from unchecked import in_own_process

from trueshift import create_model
from trueshift.train import trainer as loop
from trueshift.train.compile_check import SAFE, compiled, disagreement, fault_of_compiler

# with batch norms, which move in every pass; on batches that are mixed in place
SMALL = "{embed_dim: [8, 8, 8], depths: [1, 1, 1], num_heads: [1, 1, 1]}"
CHANGES = {"model__name": "cvt_mini", "model__arguments": SMALL, "batch_size": 4, "evaluate__limit": 4}
CHANGES |= {"max_steps": 2, "augment__mixup": 1.0, "augment__cutmix": 1.0}


class Compiled(nn.Module):
    """Stands for what the compiler makes of a network."""

    passes = 0  # made so far

    def __init__(self, network, options):
        super().__init__()
        assert options == SAFE
        self.network = network

    def forward(self, images):
        self.passes += 1
        return self.network(images)


class Failing(Compiled):
    def forward(self, images):
        super().forward(images)
        raise RuntimeError("no kernel found to launch\n\nSet TORCHDYNAMO_VERBOSE=1 for the stack trace")


class WrongGradients(Compiled):
    right = 0  # passes

    def forward(self, images):
        logits = super().forward(images)
        return logits if self.passes <= self.right else 10 * logits - (9 * logits).detach()


class WrongLater(WrongGradients):
    right = 2


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What a run learns without the compiler."""
    return weights(learn(tmp_path_factory.mktemp("plain"), **CHANGES))


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Failing, "(RuntimeError: no kernel found to launch)"), (WrongGradients, "wrong gradients"), (Compiled, None)],
)
def test_the_same_is_learned(tmp_path, monkeypatch, plain, kind, message):
    monkeypatch.setattr(torch, "compile", kind)
    assert same(plain, weights(learn(tmp_path, compile="true", **CHANGES)))
    failures = [entry["failed"] for entry in log(tmp_path, "compiler")]
    assert (message in failures[0]) if message else not failures


def test_what_goes_wrong_later_is_found_later(tmp_path, monkeypatch):
    assert loop.AGAIN_AT[0] == 10
    monkeypatch.setattr(loop, "AGAIN_AT", (1,))
    monkeypatch.setattr(torch, "compile", WrongLater)
    (failure,) = log(learn(tmp_path, compile="true", **CHANGES), "compiler")
    assert failure["step"] == 1
    assert failure["failed"].endswith("continuing without it. Updates since step 0 may be wrong")


class Steeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


TWO = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1)}
THREE = {"embed_dim": (8, 8, 8), "depths": (1, 1, 1), "num_heads": (1, 1, 1)}
SIZES = {"a_cvt_mini": THREE}
SIZES["swinv2_mini"] = SIZES["a_swinv2_mini"] = TWO | {"pretrained_window_sizes": (0, 0)}


def network(name):
    """A network with random depth, and the loss of a pass with noise on its input."""
    model = create_model(name, num_classes=10, drop_path_rate=0.3, **SIZES[name])
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)

    def loss(noise=0.0):
        torch.manual_seed(1)
        moved = images * (1 + noise * torch.randn(images.shape, generator=torch.Generator().manual_seed(2)))
        return nn.functional.cross_entropy(model(moved), labels)

    return model.train(), loss


@pytest.mark.parametrize("factor", [10, -1, 1])
def test_wrong_gradients_behind_zeros_and_random_depth_are_found(factor):
    """In the last block of a fresh SwinV2, whose norms begin with zeros; the twin with a factor of 1 passes."""
    model, loss = network("swinv2_mini")
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def by_compiler():
        last = model.stage_list[-1].blocks[-1].mlp
        with last.register_forward_hook(lambda module, given, out: Steeper.apply(out, factor)):
            return loss()

    found = fault_of_compiler(model, by_compiler, loss, loss)
    assert found is None if factor == 1 else "wrong gradients" in found
    assert same(before, model.state_dict())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["a_swinv2_mini", "a_cvt_mini"])  # norms after the branches; batch norms
def test_rounding_is_no_disagreement(name):
    """Compiled code rounds otherwise than eager code; noise of bf16's size on the input stands for both."""
    model, loss = network(name)
    assert fault_of_compiler(model, lambda: loss(-(2.0**-9)), lambda: loss(2.0**-9), loss) is None


def of(*values):
    return {f"weight{number}": torch.tensor([value]) for number, value in enumerate(values)}


@pytest.mark.parametrize(
    ("compiled", "plain", "wrong"),
    [
        (of(1.0, 0.0), of(1.05, 0.0), None),
        (of(1.0), of(float("inf")), None),  # not finite by itself: no fault of the compiler
        (of(0.0), of(1.0), "weight0, of size 0 instead of 1"),
        (of(1.5), of(1.0), "of size 1.5 instead of 1"),
        (of(float("nan")), of(1.0), "of size nan"),
        (of(1.0), of(1.0, 0.5), "weight1, of size 0 instead of 0.5"),  # missing
        # one among many
        (of(1.0, 0.02, 1e-5), of(1.0, 0.01, 1e-5), "1 parameters in 3, as of weight1, of size 0.02 instead of 0.01"),
        (of(1.0, -0.01, 1e-5), of(1.0, 0.01, 1e-5), "weight1, of size 0.01 instead of 0.01"),
        (of(1.0, 0.01, -1e-5), of(1.0, 0.01, 1e-5), None),  # what is nearly nothing is rounding
    ],
)
def test_one_that_disagrees(compiled, plain, wrong):
    found = disagreement(compiled, plain, plain)
    assert wrong in found if wrong else found is None


def test_what_low_precision_explains_is_no_disagreement():
    """In bf16 on a CPU, the eager norms' own gradients are as wrong as they are large."""
    assert disagreement(of(1.0, 0.02), of(1.0, 0.01), of(1.0, 0.009)) is None


def test_without_the_memory_for_it_less_is_compared():
    model = nn.Linear(1, 1, bias=False)

    def loss(factor=1.0):
        return factor * model(torch.ones(1, 1)).sum()

    def too_large():
        raise torch.OutOfMemoryError

    assert fault_of_compiler(model, lambda: loss(1.1), loss, too_large) is None
    assert "of size 10 instead of 1" in fault_of_compiler(model, lambda: loss(10.0), loss, too_large)
    with pytest.warns(UserWarning, match="Too little memory to compare"):
        assert fault_of_compiler(model, loss, too_large, too_large) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_mini", "swinv2_mini", "cvt_mini", "mvitv2_mini"])
@in_own_process
def test_this_compiler_here(name):
    """Of which networks the trainer will use what this torch compiles, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count = 512 if device == "cuda" else 8
    model = create_model(name, num_classes=10, drop_path_rate=0.2).to(device).train()
    images, labels = torch.randn(count, 3, 32, 32, device=device), torch.arange(count, device=device) % 10
    run = compiled(model)

    def loss(network, low=True):
        torch.manual_seed(1)
        with torch.autocast(device, torch.bfloat16, enabled=low):
            return nn.functional.cross_entropy(network(images), labels)

    assert not fault_of_compiler(model, lambda: loss(run), lambda: loss(model), lambda: loss(model, low=False))
