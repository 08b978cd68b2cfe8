"""Weights of UperNet: those of segmentation_models_pytorch, of its twins, and in folders."""

import json
from copy import deepcopy
from functools import cache

import pytest
import torch
from model_checks import perturb_norms
from safetensors.torch import save_file
from test_dense import moved_wrongly
from test_dense import segmenter as small
from timm.layers import freeze_batch_norm_2d

import trueshift as ts
from trueshift.tasks import convert, from_smp

smp = pytest.importorskip("segmentation_models_pytorch")
SWIN = "swin_tiny_patch4_window7_224"
NARROW = {"embed_dim": 24, "depths": (1, 1, 1, 1)}  # a Swin


@pytest.fixture(autouse=True)
def _narrow_swins(monkeypatch):
    """``from_smp`` makes the encoder by its name alone."""
    monkeypatch.setattr(convert, "create_model", lambda name, **more: ts.create_model(name, **more, **sizes(name)))


def sizes(name):
    return NARROW if "swin" in name else {}


def made(name=SWIN, **more):
    return smp.UPerNet(f"tu-{name}", encoder_weights=None, classes=7, decoder_channels=16, **sizes(name), **more)


@cache
def theirs():
    return perturb_norms(made()).eval()


@pytest.mark.parametrize(
    ("name", "size", "changes"),
    [
        (SWIN, 224, {}),
        ("mvitv2_tiny", 224, {}),
        # windows of a SwinV2, whose weights have the same shapes for any
        ("swinv2_tiny_window8_256", 128, {"img_size": 128}),
        ("swinv2_tiny_window8_256", 256, {"window_size": 4}),
        ("swinv2_tiny_window8_256", 64, {"window_size": 4, "img_size": 64}),
    ],
)
@torch.no_grad()
def test_the_ordinary_network_is_theirs(name, size, changes):
    reference, images = perturb_norms(made(name, **changes)).eval(), torch.randn(1, 3, size, size)
    ours = from_smp(reference)
    assert not ours.adaptive
    torch.testing.assert_close(ours(images), reference(images), rtol=1e-4, atol=1e-4)


def test_dtype_frozen_weights_and_frozen_norms_of_theirs_are_kept():
    reference = deepcopy(theirs()).double()
    reference.encoder.requires_grad_(False)
    freeze_batch_norm_2d(reference.decoder)
    ours = from_smp(torch.nn.DataParallel(reference), auxiliary=True)
    assert ours.auxiliary_head is not None
    assert from_smp(reference).auxiliary_head is None
    assert all(value.dtype == torch.float64 for value in ours.state_dict().values() if value.is_floating_point())
    for twin in (ours, ts.adapt(ours), ts.adapt(reference)):
        assert not any(weight.requires_grad for weight in twin.encoder.parameters())
        assert all(weight.requires_grad for weight in twin.segmentation_head.parameters())
        norms = {type(part).__name__ for part in twin.decoder.modules() if hasattr(part, "running_mean")}
        assert norms == {"FrozenBatchNorm2d"}
    image = torch.randn(1, 3, 224, 224, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours(image), reference(image), rtol=1e-9, atol=1e-9)


def test_a_published_folder(tmp_path):
    reference = theirs()
    save_file(reference.state_dict(), tmp_path / "model.safetensors")
    about = {"encoder_name": "tu-swin_tiny_patch4_window7_224", "decoder_channels": 16, "classes": 7}
    (tmp_path / "config.json").write_text(json.dumps(about))
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(from_smp(tmp_path)(images), reference(images), rtol=1e-4, atol=1e-4)
    (tmp_path / "config.json").write_text(json.dumps(about | {"activation": "sigmoid", "upsampling": 4}))
    with pytest.raises(ValueError, match="activation=sigmoid and upsampling=4: needs"):
        from_smp(tmp_path)


def test_theirs_adapted_moves_with_the_image():
    twin = ts.adapt(theirs())
    assert twin.adaptive
    assert not twin.config.head_align_corners
    assert moved_wrongly(twin, torch.rand(1, 3, 224, 224), 2) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda: (theirs().state_dict(),), ValueError, "does not name its encoder"),
        (lambda: (theirs().state_dict(), "mvitv2_tiny"), ValueError, "do not fit UperNet on mvitv2_tiny: missing"),
        (lambda: ({"module.x": torch.zeros(1)}, "swin_tiny"), ValueError, "'module.x' and so on, have no decoder"),
        (lambda: (torch.nn.Identity(),), TypeError, "segmentation_models_pytorch"),
        (lambda: (smp.UPerNet("resnet18", encoder_weights=None),), ValueError, "on timm's Swin, SwinV2 or MViTv2"),
        (lambda: (made(activation="softmax2d"),), ValueError, "activation=Softmax and .*needs activation=None"),
        (lambda: (made(upsampling=2),), ValueError, "upsampling=2: needs activation=None and upsampling=4"),
    ],
)
def test_weights_that_do_not_fit_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        from_smp(*arguments())


# -- twins ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["swin_mini", "mvitv2_mini"])
def test_there_and_back(name):
    ordinary, images = small(name), torch.rand(2, 3, 32, 32)
    ordinary.encoder.patch_embed.proj.weight.requires_grad_(False)
    before = {key: value.clone() for key, value in ordinary.state_dict().items()}
    twin = ts.adapt(ordinary)
    assert moved_wrongly(twin, images, 2) == 0
    assert not twin.encoder.patch_embed.proj.weight.requires_grad
    back = ts.revert(twin)
    assert back.state_dict().keys() == ordinary.state_dict().keys()
    assert all(torch.equal(value, ordinary.state_dict()[key]) for key, value in back.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(back(images), ordinary(images), rtol=1e-5, atol=1e-5)
    twin.train()(images, torch.randint(5, (2, 32, 32))).backward()  # which the network given does not see
    assert all(torch.equal(value, before[key]) for key, value in ordinary.state_dict().items())
    assert not ordinary.training
    baseline = ts.revert(twin, padding="circular")  # the paper's
    assert type(baseline.decoder.fusion_block[0]) is ts.CircularConv2d
    assert not baseline.adaptive


def test_a_folder_of_another_network_is_refused(tmp_path):
    ts.create_model("a_swin_mini").save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="not a UperNet"):
        ts.UperNet.from_pretrained(tmp_path)
    small("a_swin_mini", classes=6).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="does not fit"):
        ts.from_pretrained(tmp_path, channels=24)
    (tmp_path / "config.json").write_text('{"architecture": "upernet"}')
    with pytest.raises(ValueError, match="save the model again"):
        ts.from_pretrained(tmp_path)
