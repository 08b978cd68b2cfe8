"""A compiler that fails, or is wrong, costs a run nothing but its speed."""

import platform
from pathlib import Path

import pytest
import torch
from torch import nn
from training_runs import log, run_here, same, weights

from trueshift import create_model
from trueshift.train import trainer as loop
from trueshift.train.compile_check import (
    SAFE,
    disagreement,
    fault_of_compiler,
    gradients,
    otherwise_if_constant,
    rounded_otherwise,
    weights_moved,
)

# with batch norms, which move in every pass
SMALL = "{embed_dim: [16, 16, 16], depths: [1, 1, 1], num_heads: [1, 1, 1]}"
CHANGES = {"model__name": "cvt_mini", "model__arguments": SMALL, "max_steps": 2, "batch_size": 4, "evaluate__limit": 4}


class Compiled(nn.Module):
    """Stands for what the compiler makes of a network."""

    def __init__(self, network, options):
        super().__init__()
        assert options == SAFE
        self.network = network

    def forward(self, images):
        return self.network(images)


class Failing(Compiled):
    def forward(self, images):
        super().forward(images)
        raise RuntimeError("no kernel found to launch")


class WrongGradients(Compiled):
    def forward(self, images):
        logits = super().forward(images)
        return 1000 * logits - (999 * logits).detach()


class Steeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


@pytest.fixture(scope="module", params=["mixup", "cutmix"])
def plain(request, tmp_path_factory):
    """A run without the compiler, on batches that are mixed in place; and its options."""
    folder, changes = tmp_path_factory.mktemp("plain"), CHANGES | {f"augment__{request.param}": 1.0}
    run_here(folder, **changes)
    return weights(folder), changes


@pytest.mark.parametrize(
    ("kind", "message"), [(Failing, "no kernel found"), (WrongGradients, "wrong gradients"), (Compiled, None)]
)
def test_the_same_is_learned(tmp_path, monkeypatch, plain, kind, message):
    monkeypatch.setattr(torch, "compile", kind)
    assert run_here(tmp_path, compile="true", **plain[1]) == 0
    assert same(plain[0], weights(tmp_path))
    failures = [entry["failed"] for entry in log(tmp_path, "compiler")]
    assert (message in failures[0]) if message else not failures


@pytest.mark.parametrize("factor", [10, -1])
def test_wrong_gradients_behind_zeros_and_random_depth_are_found_at_once(tmp_path, monkeypatch, factor):
    def compiler(network, options):
        last = network.stage_list[-1].blocks[-1].mlp
        last.register_forward_hook(lambda module, given, out: Steeper.apply(out, factor) if compiled else out)
        return Behind(network, options)

    compiled: list[bool] = []

    class Behind(Compiled):
        def forward(self, images):
            compiled.append(True)
            try:
                return super().forward(images)
            finally:
                compiled.clear()

    monkeypatch.setattr(torch, "compile", compiler)
    changes = {"model__arguments": "{drop_path_rate: 0.3}", "max_steps": 1, "batch_size": 4, "evaluate__limit": 4}
    assert run_here(tmp_path, compile="true", model__name="swinv2_mini", **changes) == 0
    assert "wrong gradients" in log(tmp_path, "compiler")[0]["failed"]


def test_what_goes_wrong_later_is_found_later(tmp_path, monkeypatch):
    class WrongLater(Compiled):
        passes = 0

        def forward(self, images):
            self.passes += 1
            logits = super().forward(images)
            return logits if self.passes <= 2 else 10 * logits - (9 * logits).detach()

    assert loop.AGAIN_AT[0] == 10
    monkeypatch.setattr(loop, "AGAIN_AT", (2,))
    monkeypatch.setattr(torch, "compile", WrongLater)
    assert run_here(tmp_path, compile="true", **CHANGES | {"max_steps": 3}) == 0
    (failure,) = log(tmp_path, "compiler")
    assert failure["step"] == 2
    assert failure["failed"].endswith("continuing without it. Updates since step 0 may be wrong")


@pytest.mark.parametrize("move", [otherwise_if_constant, rounded_otherwise])
def test_weights_come_back_to_the_last_bit(move):
    model = create_model("swinv2_mini", num_classes=10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with weights_moved(model, move):
        moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert same(before, model.state_dict())
    norms, weights = ({name for name in before if name.endswith(ends)} for ends in ("norm1.weight", "fc1.weight"))
    assert norms
    assert weights
    # zeros are what rounding leaves alone, and what a gradient does not pass
    assert (norms <= moved, weights <= moved) == ((True, False) if move is otherwise_if_constant else (False, True))


def has_bf16():
    """Whether the CPU multiplies in bf16; emulated, it takes minutes where float32 takes a second."""
    if platform.machine() in ("aarch64", "arm64"):
        flags = Path("/proc/cpuinfo")
        return flags.exists() and " bf16" in flags.read_text()
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


BF16 = has_bf16()
NO_BF16 = "this CPU has no bf16 instructions"


@pytest.mark.parametrize("name", ["swin_mini", "a_swinv2_mini", "a_cvt_mini", "a_mvitv2_mini"])
def test_rounding_is_no_disagreement(name):
    """Compiled code rounds less often than eager code in bf16, or only its weights otherwise.

    Without bf16 instructions the network runs in float32, and only its weights are rounded to bf16.
    """
    torch.manual_seed(0)
    model = create_model(name, num_classes=10, drop_path_rate=0.2).train()
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)

    def by(float32):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=BF16 and not float32):
            return gradients(model, lambda: nn.functional.cross_entropy(model(images), labels))

    def rounded():
        with weights_moved(model, rounded_otherwise):
            return by(float32=False)

    for compiler in (rounded, lambda: by(float32=True)) if BF16 else (rounded,):
        assert fault_of_compiler(model, compiler, by, pytest.fail) is None
    assert not same(by(float32=True), by(float32=False) if BF16 else rounded())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.skipif(not BF16, reason=NO_BF16)
def test_norms_in_bf16_on_a_cpu_are_no_fault_of_a_compiler(tmp_path, monkeypatch):
    """There the eager norms' own gradients are as wrong as they are large."""

    class Precise(Compiled):
        def forward(self, images):
            with torch.autocast("cpu", enabled=False):
                return super().forward(images)

    monkeypatch.setattr(torch, "compile", Precise)
    changes = {"max_steps": 1, "batch_size": 16, "precision": "bf16", "evaluate__limit": 4}
    assert run_here(tmp_path, compile="true", model__name="a_swin_mini", model__arguments="{}", **changes) == 0
    assert not log(tmp_path, "compiler")


def of(*values):
    return {f"weight{number}": torch.tensor([value]) for number, value in enumerate(values)}


@pytest.mark.parametrize(
    ("compiled", "plain", "wrong"),
    [
        (of(1.0), of(1.05), None),
        (of(0.0), of(0.0), None),
        (of(1.0), of(float("inf")), None),  # not finite by itself: no fault of the compiler
        (of(0.0), of(1.0), "weight0, of size 0 instead of 1"),
        (of(1.5), of(1.0), "of size 1.5 instead of 1"),
        (of(float("nan")), of(1.0), "of size nan"),
        (of(1.0), of(1.0, 0.5), "weight1, of size 0 instead of 0.5"),  # missing
    ],
)
def test_one_that_disagrees(compiled, plain, wrong):
    found = disagreement(compiled, plain, [plain])
    assert wrong in found if wrong else found is None


def test_one_parameter_that_is_wrong_is_found_among_many():
    plain = of(1.0, 0.01, 0.00001)
    assert "1 parameters in 3, as of weight1, of size 0.02 instead of 0.01" in disagreement(
        of(1.0, 0.02, 0.00001), plain, [plain]
    )
    assert "weight1, of size 0.01 instead of 0.01" in disagreement(of(1.0, -0.01, 0.00001), plain, [plain])
    assert disagreement(of(1.0, 0.01, -0.00001), plain, [plain]) is None  # what is nearly nothing is rounding
    assert disagreement(of(1.0, 0.02, 0.00001), plain, [plain, of(1.0, 0.009, 0.00001)]) is None  # rounding does it


def test_where_float32_does_not_fit_the_others_are_compared():
    def own(float32):
        if float32:
            raise torch.OutOfMemoryError
        return of(1.0)

    network = nn.Linear(1, 1)
    assert fault_of_compiler(network, lambda: of(1.1), own, pytest.fail) is None
    assert "of size 10 instead of 1" in fault_of_compiler(network, lambda: of(10.0), own, pytest.fail)


GRADIENTS = """
import torch
from torch import nn
from trueshift import create_model
from trueshift.train.compile_check import compiled, fault_of_compiler, gradients

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
images = 512 if device == "cuda" else 8
model = create_model(NAME, num_classes=10, drop_path_rate=0.2).to(device).train()
x, labels = torch.randn(images, 3, 32, 32, device=device), torch.arange(images, device=device) % 10
run = compiled(model)

def by(network, float32=False):
    torch.manual_seed(1)
    with torch.autocast(device, torch.bfloat16, enabled=not float32):
        return gradients(model, lambda: nn.functional.cross_entropy(network(x), labels))

print(fault_of_compiler(model, lambda: by(run), lambda float32: by(model, float32), print))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_mini", "swinv2_mini", "cvt_mini", "mvitv2_mini"])
def test_this_compiler_here(name, run_unchecked):
    """Of which networks the trainer will use what this torch compiles, on the GPU if there is one."""
    assert run_unchecked(GRADIENTS.replace("NAME", repr(name))).splitlines()[-1] == "None"
