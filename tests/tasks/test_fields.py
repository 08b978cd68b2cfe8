"""Fields move with their input: FieldNet on every backbone, bit for bit; and what comes out of the decoder's parts."""

import pytest
import torch
from model_checks import narrow, perturb_norms, random_shifts

import trueshift as ts
from trueshift import FieldNet, TokenGrid, Tokens, circular_shift
from trueshift.ops.geometry.resample import resample, start_at
from trueshift.ops.geometry.shift import IMAGE_DIMS
from trueshift.tasks import fields
from trueshift.tasks.fields import SplitTokens
from trueshift.testing import hostile_images

MINI = ts.list_models("a_*mini*")


def small(name, in_chans=2, *more, **arguments):
    """A network that answers in milliseconds, with norms as after training."""
    return perturb_norms(FieldNet(name, in_chans, *more, **{**narrow(name), "decoder_depth": 1, **arguments})).eval()


def some_fields(size=(32, 32), channels=2, every=1):
    """Hostile images as fields of both signs; "huge" overflows a float32 norm, as in any network."""
    named = {name: image for name, image in hostile_images(size, channels).items() if name != "huge"}
    return torch.stack(list(named.values())[::every]) - 0.25


@torch.no_grad()
def moved_wrongly(net, x, shifts, axes=(1, 1)):
    """The share of pairs of field and shift, along some axes, that do not give the moved output."""
    out, wrong = net(x), []
    for offset in random_shifts(x, shifts):
        offset = offset * torch.tensor(axes)
        again = net(circular_shift(x, offset, IMAGE_DIMS))
        wrong.append((again != circular_shift(out, offset, IMAGE_DIMS)).flatten(1).any(1))
    assert out.isfinite().all()
    return torch.cat(wrong).float().mean()


@pytest.mark.parametrize("name", MINI)
@pytest.mark.parametrize("residual", [True, False])
def test_fields_move_with_their_input(name, residual):
    assert moved_wrongly(small(name, residual=residual), some_fields(), 2) == 0


@pytest.mark.parametrize("name", MINI)
def test_columns_alone(name):
    net, x = small(name, circular="width"), some_fields((16, 32), every=2)
    assert moved_wrongly(net, x, 2, (0, 1)) == 0
    assert moved_wrongly(net, x, 2, (1, 0)) > 0.3


@pytest.mark.parametrize(("inside", "outside"), [(1, 1), (5, 2), (2, 7)])
def test_any_channels_and_unequal_sides(inside, outside):
    net, x = small("a_swinv2_mini", inside, outside), some_fields((32, 64), inside, every=5)
    assert net(x).shape == (len(x), outside, 32, 64)
    assert moved_wrongly(net, x, 2) == 0


def test_an_ordinary_network_with_an_anchor_is_exact_too():
    assert moved_wrongly(small("swinv2_mini", anchor=True), some_fields(every=3), 2) == 0


def test_the_ordinary_network_does_not_move_with_its_input():
    """So that the tests above can fail."""
    assert moved_wrongly(small("swin_mini"), some_fields(every=4), 2) > 0.5


def test_bf16_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert moved_wrongly(small("a_swin_mini"), some_fields(every=6), 2) == 0


@torch.no_grad()
def test_steps_in_time_move_along():
    """What a network says of its own output."""
    net, x = small("a_swinv2_mini", residual=True), torch.randn(2, 2, 32, 32)
    y, moved = x, x.roll((5, 11), (2, 3))
    for _ in range(5):
        y, moved = net(y), net(moved)
    assert torch.equal(moved, y.roll((5, 11), (2, 3)))


@pytest.mark.parametrize("broken", ["nothing", "grids", "padding"])
@torch.no_grad()
def test_each_part_of_the_decoder_moves_with_the_field(broken, monkeypatch):
    """Behind an anchor any decoder would be exact; without one, only what goes by the grids and around the circle."""
    net, x = small("a_swin_mini", anchor=False), torch.randn(4, 2, 64, 64)
    if broken == "grids":
        monkeypatch.setattr(fields, "start_at", lambda tokens, origin: tokens)
    if broken == "padding":
        for module in net.decoder.modules():
            if isinstance(module, fields.ConvBlock):
                module.pad_mode = "zeros"
    out, offset = net(x), torch.randint(1, 64, (4, 2))
    again = net(circular_shift(x, offset, IMAGE_DIMS))
    error = (again - circular_shift(out, offset, IMAGE_DIMS)).abs().max() / out.std()
    assert (error < 1e-3) if broken == "nothing" else (error > 0.02)


def test_a_token_is_split_into_those_it_was_merged_from():
    """Where the skip connection's tokens stand: on the same patch of the field."""
    fine = TokenGrid.of_image(torch.zeros(3, 1, 16, 24)).advance(torch.tensor([[1, 0], [0, 1], [1, 1]]), 2)
    coarse = fine.advance(torch.tensor([[1, 1], [0, 1], [1, 0]]), (2, 2))
    tokens = Tokens(torch.rand(3, *coarse.shape, 5), coarse)
    split = SplitTokens(5, 5, (2, 2))
    with torch.no_grad():
        split.expand.weight.copy_(torch.eye(5).repeat(4, 1))
        split.expand.bias.zero_()
    skip = start_at(Tokens(torch.zeros(3, *fine.shape, 5), fine), coarse.origin)
    assert torch.equal(split(tokens.values), resample(tokens, skip.grid, "nearest").values)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MINI, "swinv2_mini"])
def test_every_weight_learns(name):
    net = small(name, grid_drop_rate=0.5 * name.startswith("a_")).train()
    (net(torch.randn(2, 2, 32, 32)) ** 2).mean().backward()
    assert not [name for name, weight in net.named_parameters() if weight.grad is None]
    assert all(weight.grad.any() for weight in net.decoder.parameters())


def test_random_grids_are_for_training_alone():
    net, x = small("a_swinv2_mini", grid_drop_rate=1.0), torch.randn(1, 2, 32, 32)
    assert moved_wrongly(net, some_fields(every=8), 1) == 0
    net.train()
    with torch.no_grad():
        assert len({net(x).sum().item() for _ in range(4)}) > 1


def test_recomputed_activations_give_the_same_gradients():
    net, x = small("a_swin_mini").train(), torch.randn(2, 2, 32, 32)
    found = []
    for enable in (False, True):
        net.zero_grad()
        net.set_grad_checkpointing(enable)
        net(x).square().mean().backward()
        found.append([weight.grad.clone() for weight in net.parameters()])
    torch.testing.assert_close(*found)


# -- files and errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a_swinv2_mini", "cvt_mini"])
def test_saved_and_loaded(tmp_path, name):
    net, x = small(name, 2, 3, kernel_size=3), torch.randn(1, 2, 32, 32)
    net.pretrained_cfg["mean"] = [0.5, 1.0]
    again = ts.from_pretrained(net.save_pretrained(tmp_path))
    assert isinstance(again, FieldNet)
    assert (again.config, again.pretrained_cfg) == (net.config, net.pretrained_cfg)
    assert again.encoder.config.choices.padding_mode == "circular"
    assert torch.equal(again(x), net(x))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda net: net(torch.randn(1, 2, 33, 32)), ValueError, "multiple"),
        (lambda net: net(torch.randn(1, 3, 32, 32)), ValueError, "made for 2"),
        (lambda net: net(torch.zeros(1, 2, 32, 32, dtype=torch.int64)), TypeError, "floating-point"),
        (lambda net: net(torch.full((1, 2, 32, 32), torch.nan)), ValueError, "NaN or infinity"),
        (lambda net: FieldNet("a_swin_mini", 2, 3, residual=True), ValueError, "as many out as in"),
        (lambda net: FieldNet("a_swin_mini", 2, 0), ValueError, "at least 1"),
        (lambda net: FieldNet("a_swin_mini", kernel_size=4), ValueError, "odd"),
        (lambda net: FieldNet("a_swin_mini", residul=True), TypeError, "no argument 'residul'"),
        (lambda net: FieldNet(net.encoder, 3), ValueError, "needs the 2 of the backbone"),
        (lambda net: FieldNet(net.encoder, 2, img_size=64), TypeError, "exists takes no arguments"),
        (lambda net: FieldNet(torch.nn.Identity()), TypeError, "no backbone"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message, our_errors):
    with pytest.raises(error, match=message):
        call(small("a_swin_mini"))


# -- in one compiled graph --------------------------------------------------------------------------------------------

PROGRAM = """
import torch, trueshift as ts
from model_checks import perturb_norms, random_shifts

torch.manual_seed(0)
torch.set_num_threads(1)
sizes = dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2), decoder_depth=1, kernel_size=3)
net = perturb_norms(ts.FieldNet("{name}", 2, residual=True, **sizes)).eval()
fields = torch.randn(4, 2, 32, 32)
compiled = torch.compile(net, fullgraph=True)
with torch.no_grad():
    out = compiled(fields)
    torch.testing.assert_close(out, net(fields), rtol=1e-3, atol=1e-3)
    for offset in random_shifts(fields, 4):
        again = compiled(ts.circular_shift(fields, offset, (2, 3)))
        assert torch.equal(again, ts.circular_shift(out, offset, (2, 3))) == net.adaptive
net.train()
compiled(fields).square().mean().backward()
assert all(weight.grad is not None for weight in net.parameters())
print("ok")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a_swin_mini", "swin_mini"])
def test_one_graph(name, run_unchecked):
    assert "ok" in run_unchecked(PROGRAM.format(name=name))
