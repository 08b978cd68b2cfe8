"""A compiler that fails, or is wrong, costs a run nothing but its speed."""

import pytest
import torch
from torch import nn
from training_runs import log, run_here, same, weights

from trueshift import create_model
from trueshift.train.compiling import constants_moved, disagreement, gradients

# with batch norms, which move in every pass
CHANGES = {"model__name": "cvt_mini", "model__arguments": "{}", "max_steps": 2, "batch_size": 4, "evaluate__limit": 4}


class Compiled(nn.Module):
    """Stands for what the compiler makes of a network."""

    def __init__(self, network, options):
        super().__init__()
        assert options == {"inplace_buffers": False}
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
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return 1e4 * gradient


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    run_here(folder, **CHANGES)
    return weights(folder)


@pytest.mark.parametrize(
    ("kind", "told"), [(Failing, "no kernel found"), (WrongGradients, "gradients of size"), (Compiled, None)]
)
def test_the_same_is_learned(tmp_path, monkeypatch, plain, kind, told):
    monkeypatch.setattr(torch, "compile", kind)
    assert run_here(tmp_path, compile="true", **CHANGES) == 0
    assert same(plain, weights(tmp_path))
    failures = [entry["failed"] for entry in log(tmp_path) if entry["kind"] == "compiler"]
    assert (told in failures[0]) if told else not failures


@pytest.mark.parametrize("mixing", ["augment__mixup", "augment__cutmix"])
def test_trying_the_compiler_leaves_the_pictures_as_they_were(tmp_path, monkeypatch, mixing):
    changes = {mixing: 1.0, "max_steps": 1, "batch_size": 4, "evaluate__limit": 4}
    run_here(tmp_path / "plain", **changes)
    for kind in (Compiled, Failing):
        monkeypatch.setattr(torch, "compile", kind)
        assert run_here(tmp_path / kind.__name__, compile="true", **changes) == 0
        assert same(weights(tmp_path / "plain"), weights(tmp_path / kind.__name__)), kind


def test_wrong_gradients_behind_zeros_are_found_at_once(tmp_path, monkeypatch):
    def compiler(network, options):
        for stage in network.stage_list:
            for block in stage.blocks:
                block.mlp.register_forward_hook(lambda module, given, out: Steeper.apply(out) if compiled else out)
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
    assert run_here(tmp_path, compile="true", model__name="swinv2_mini", max_steps=1) == 0
    assert "gradients of size" in next(entry for entry in log(tmp_path) if entry["kind"] == "compiler")["failed"]


def test_constants_come_back_to_the_last_bit():
    model = create_model("swinv2_mini", num_classes=10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with constants_moved(model):
        moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    norms = {name for name in before if ".norm" in name}
    assert norms <= moved
    assert not any(name.endswith(("qkv.weight", "fc1.weight")) for name in moved)
    assert same(before, model.state_dict())


def test_random_depth_is_no_disagreement():
    model = create_model("swin_mini", num_classes=10, drop_path_rate=0.5).train()
    images, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    tries = [gradients(model, lambda: nn.functional.cross_entropy(model(images), labels)) for _ in range(5)]
    sizes = [torch.nn.utils.get_total_norm(each.values()).item() for each in tries]
    assert len(set(sizes)) == 5
    assert not any(disagreement(each, *tries[:2]) for each in tries)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("compiled", "plain", "wrong"),
    [(1.0, 1.1, False), (0.0, 0.0, False), (0.0, 1.0, True), (1e4, 1.0, True), (float("nan"), 1.0, True)],
)
def test_sizes_that_disagree(compiled, plain, wrong):
    assert (disagreement(of(compiled), of(plain), of(plain)) is not None) is wrong


def of(*values):
    return {f"weight{number}": torch.tensor([value]) for number, value in enumerate(values)}


def test_what_is_not_finite_by_itself_is_no_fault_of_the_compiler():
    assert disagreement(of(1.0), of(float("inf")), of(1.0)) is None


def test_one_parameter_that_is_wrong_is_found_among_many():
    plain = of(1.0, 0.1, 0.001)
    assert "1 parameters of 3, as of weight1" in disagreement(of(1.0, -0.1, 0.001), plain, plain)
    assert "as of weight1" in disagreement(of(1.0, 0.4, 0.001), plain, plain)
    assert disagreement(of(1.0, 0.1, -0.001), plain, plain) is None  # what is nearly nothing is rounding
    assert disagreement(of(1.0, -0.1, 0.001), plain, of(1.0, 0.0, 0.001)) is None  # chance explains it


def test_gradients_that_are_missing_are_wrong():
    assert "as of weight1" in disagreement(of(1.0), of(1.0, 0.5), of(1.0, 0.5))


GRADIENTS = """
import torch
from torch import nn
from trueshift import create_model
from trueshift.train.compiling import compiled, constants_moved, disagreement, gradients

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
images = 512 if device == "cuda" else 2
model = create_model(NAME, num_classes=10).to(device).train()
x, labels = torch.randn(images, 3, 32, 32, device=device), torch.arange(images, device=device) % 10

def by(run):
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return gradients(model, lambda: nn.functional.cross_entropy(run(x), labels))

with constants_moved(model):
    print(disagreement(by(compiled(model)), by(model), by(model)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_mini", "swinv2_mini", "cvt_mini", "mvitv2_mini"])
def test_this_compiler_here(name, run_unchecked):
    """Of which networks the trainer will use what this torch compiles, on the GPU if there is one."""
    assert run_unchecked(GRADIENTS.replace("NAME", repr(name))).splitlines()[-1] == "None"
