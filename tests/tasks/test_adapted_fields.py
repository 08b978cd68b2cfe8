"""FieldNet on adapted networks of transformers; that fields move with their input is in test_dense.py."""

import json

import pytest
import torch
import transformers as hf
from model_checks import perturb_norms
from test_dense import SMALL_SWIN, moved_wrongly, some_fields
from timm.models import group_parameters

import trueshift as ts
from trueshift import FieldNet
from trueshift.layers.patch_conv import FrameConv
from trueshift.tasks.adapted import AdaptedEncoder

KINDS = {"swin": (hf.SwinModel, hf.SwinConfig), "swinv2": (hf.Swinv2Model, hf.Swinv2Config)}
DECODER = {"decoder_depth": 1, "kernel_size": 3}
every_kind = pytest.mark.parametrize("kind", KINDS)


def swin(kind="swinv2", **more):
    torch.manual_seed(0)
    model, config = KINDS[kind]
    return model(config(**{**SMALL_SWIN, "num_channels": 2, **more}))


def small(kind="swinv2", **how):
    return perturb_norms(FieldNet(ts.adapt(swin(kind), **how), 2, residual=True, **DECODER)).eval()


def test_an_ordinary_network_would_not_move(monkeypatch):
    """So that those of test_dense.py can fail: the same weights without the frame."""
    net = small()
    monkeypatch.setattr(FrameConv, "anchor_offset", lambda self, candidates, offset: offset)
    assert moved_wrongly(net, some_fields(every=4), 2) > 0.5


@every_kind
@pytest.mark.parametrize("circular", ["both", "width"])
def test_random_grids_while_training(kind, circular):
    """Tokens are those of the ordinary network, before they merge, on the field rolled to where they say they are."""
    positions = kind == "swin"  # of transformers' Swinv2 one too many
    how = {"criterion": "max_norm", "grid_drop_rate": 1.0, "circular": circular}
    adapted = ts.adapt(swin(kind, use_absolute_embeddings=positions), **how)
    if positions:
        torch.nn.init.normal_(adapted.embeddings.position_embeddings)
    ordinary = ts.revert(adapted).train()
    net, x, seen = FieldNet(adapted, 2, **DECODER).train(), torch.randn(16, 2, 32, 32), set()
    for _ in range(2):
        levels = net.encoder.features(x)
        start = levels[0].grid.origin
        wanted = {"output_hidden_states": True, "output_hidden_states_before_downsampling": True}
        embedded = ordinary.embeddings(ts.circular_shift(x, start, (2, 3)))
        stages = ordinary.encoder(*embedded, **wanted).reshaped_hidden_states[1:]
        for step, level, stage in zip((2, 4, 8), levels, stages, strict=True):
            assert level.grid.stride == (step, step)
            assert torch.equal(level.grid.origin, start)
            torch.testing.assert_close(level.values, stage.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)
        seen |= {tuple(each) for each in start.tolist()}
    assert seen == {(row, column) for row in range(2 if circular == "both" else 1) for column in range(2)}
    net.eval()
    last = net.encoder.model(x, output_hidden_states=True).reshaped_hidden_states[-1]
    assert torch.equal(net.encoder.features(x)[-1].values, last.permute(0, 2, 3, 1))
    offset = (0, 5) if circular == "width" else (3, 5)
    assert torch.equal(net(x.roll(offset, (2, 3))), net(x).roll(offset, (2, 3)))


@every_kind
def test_one_by_name(kind):
    """The same as one of adapt's, in the names of ours where there are some."""
    sizes = {key: value for key, value in SMALL_SWIN.items() if key != "image_size"} | {"img_size": (32, 64)}
    net = FieldNet(f"transformers/{kind}", 2, residual=True, criterion="max_norm", **sizes, **DECODER).eval()
    again = FieldNet(ts.adapt(swin(kind, image_size=(32, 64)), criterion="max_norm"), 2, residual=True, **DECODER)
    assert net.hub_config() == again.hub_config()
    again.load_state_dict(net.state_dict())
    x = torch.randn(1, 2, 32, 64)
    assert torch.equal(net(x), again.eval()(x))


@every_kind
def test_weights_in_groups(kind):
    net = small(kind)
    for coarse, depth in ((True, 4), (False, 5)):  # embedding, 3 stages or 4 blocks; others go with the last
        groups = group_parameters(net, net.group_matcher(coarse))
        assert len(groups) == depth
        assert sum(map(len, groups.values())) == len(list(net.parameters()))
    assert any("logit_scale" in name for name in net.no_weight_decay()) == (kind == "swinv2")


@pytest.mark.parametrize("how", [{}, {"circular": "width", "criterion": "max_norm", "grid_drop_rate": 0.25}])
def test_saved_and_loaded(tmp_path, how):
    net, x = small(**how), torch.randn(1, 2, 32, 32)
    net.pretrained_cfg["mean"] = [0.5, 1.0]
    again = ts.from_pretrained(net.save_pretrained(tmp_path))
    assert isinstance(again.encoder, AdaptedEncoder)
    assert (again.config, again.pretrained_cfg, again.circular) == (net.config, net.pretrained_cfg, net.circular)
    assert torch.equal(again(x), net(x))
    assert again.encoder.config.grid_drop_rate == how.get("grid_drop_rate", 0)
    assert ts.from_pretrained(tmp_path, drop_path_rate=0.5).encoder.model.config.drop_path_rate == 0.5
    assert again.title == "FieldNet on transformers/swinv2"
    assert ("shift of columns" in again.shift_law) == bool(how)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "backbone": "transformers/vit"}))
    with pytest.raises(ValueError, match="needs one of transformers/swin, transformers/swinv2"):
        ts.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FieldNet(swin(), 2), TypeError, "ordinary one: needs trueshift.adapt"),
        (lambda: FieldNet(ts.adapt(swin()), 3), ValueError, "needs the 2 of the backbone"),
        (lambda: FieldNet(ts.adapt(swin()), 2, img_size=64), TypeError, "no backbone"),
        (lambda: FieldNet(ts.adapt(swin(), criterion="learned"), 2), ValueError, "criterion that is learned"),
        (lambda: FieldNet("transformers/swin", dim=8), ValueError, "does not know dim: needs arguments of SwinConfig"),
        (lambda: FieldNet("transformers/swin", border="closed"), ValueError, "does not know border"),
        (lambda: FieldNet("transformers/swin", depths=3), ValueError, "cannot be made as asked: .*depths"),
        (lambda: FieldNet("transformers/swin", 2, num_channels=3), ValueError, "needs the 3 of the backbone"),
        (lambda: FieldNet("transformers/swin", grid_drop_rate=0.5), ValueError, "e.g. criterion='max_norm'"),
        (lambda: FieldNet(ts.adapt(hf.ViTModel(hf.ViTConfig(num_hidden_layers=1)))), TypeError, "adapted SwinModel"),
        (lambda: ts.revert(small()), TypeError, "a FieldNet cannot be reverted: needs trueshift's own backbones"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message, our_errors):
    with pytest.raises(error, match=message):
        call()
