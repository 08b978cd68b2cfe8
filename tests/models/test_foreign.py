"""Networks of timm, torchvision and transformers that keep their class: exact in evaluation, and theirs again after."""

from pathlib import Path

import pytest
import timm
import torch
import transformers as hf
from foreign_models import FAMILIES, make, outputs, size
from layer_zoo import Busiest
from PIL import Image
from torch import nn
from unchecked import in_own_process

import trueshift as ts
from trueshift.layers.patch_conv import FrameConv
from trueshift.testing import assert_equivariant, assert_invariant, hostile_images, photographs

IMAGES = [name for name in FAMILIES if name != "torchvision mvit"]
ALIKE = (  # beside another member of the same library that is built alike
    *("timm vit, dynamic size", "timm clip", "timm siglip", "transformers vit", "transformers deit, classes"),
    *("transformers dinov2", "transformers dinov2, registers", "transformers swin", "transformers swinv2"),
    *("transformers siglip", "torchvision swin"),
)


def members(names):
    """All of them, those that are alike in the slow tests."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in names]
    )


_NAMED = {**hostile_images(32), **photographs(32)}
_CHOSEN = ("constant", "two bright pixels", "four bright pixels", "tiles", "tiles that fit", "mirror", "huge", "rocket")
HOSTILE = torch.stack([_NAMED[name] for name in (*_CHOSEN, "checkerboard 3", "faint contrast", "normal noise")])


def patch(model):
    return next(part for part in model.modules() if isinstance(part, FrameConv))


def moved(image, shift=(5, -3)):
    return image.roll(shift, (-2, -1))


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@members(FAMILIES)
@torch.no_grad()
def test_there_and_back(name):
    ordinary, image = make(name), torch.rand(2, *size(name))
    before = {key: value.clone() for key, value in ordinary.state_dict().items()}
    expected = outputs(ordinary, image)
    adapted = ts.adapt(ordinary)
    reverted = ts.revert(adapted)
    for model in (adapted, reverted):
        assert type(model) is type(ordinary)
        assert list(model.state_dict()) == list(before)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert same(outputs(reverted, image), expected)
    assert [type(part) for part in reverted.modules()] == [type(part) for part in ordinary.modules()]
    # in training the frame is the image's own, as in the ordinary network
    patch(adapted).train()
    assert same(outputs(adapted, image), expected)
    # nothing of the copy is shared
    for parameter in (*adapted.parameters(), *reverted.parameters()):
        parameter.zero_()
    assert same(outputs(ordinary, image), expected)


@members(FAMILIES)
def test_no_bit_changes_when_the_image_moves(name):
    ordinary, clip = make(name), len(size(name)) == 4

    def shown(model):
        def forward(image):  # four frames of a clip, each brighter than the last
            frames = image[:, :, None] * torch.linspace(0.5, 1, 4).view(4, 1, 1)
            return outputs(model, frames if clip else image)

        return forward

    assert_invariant(shown(ts.adapt(ordinary)), HOSTILE, shifts=2)
    if clip:  # images with a criterion that chooses: below
        for criterion in ("input_norm", "spot"):
            assert_invariant(shown(ts.adapt(ordinary, criterion=criterion)), HOSTILE, shifts=2)
    with pytest.raises(AssertionError, match="does not hold"):
        assert_invariant(shown(ordinary), HOSTILE[-1:], shifts=1)


@members(IMAGES)
def test_features_stand_where_the_image_does(name):
    adapted = ts.adapt(make(name), criterion="max_norm")
    images = HOSTILE[::4]
    assert_equivariant(lambda image: list(ts.features(adapted, image)), images, shifts=1)
    assert_invariant(lambda image: outputs(adapted, image), images, shifts=1)


@torch.no_grad()
def test_what_is_called_a_feature_is_the_librarys_own():
    image = torch.rand(2, 3, 32, 32)
    dinov2 = ts.adapt(make("transformers dinov2, registers"))
    (tokens,) = ts.features(dinov2, image, 1)
    hidden = dinov2(image, output_hidden_states=True).hidden_states[-1]
    assert torch.equal(tokens.grid.origin, ts.origin(dinov2, image))
    assert torch.equal(torch.cat([tokens.prefix, tokens.values.flatten(1, 2)], 1), hidden)
    assert tokens.prefix.shape[1] == 5
    ours = ts.create_model("a_swin_mini").eval()
    assert torch.equal(ts.features(ours, image, [0])[0].values, ours.features(image)[0].values)


@torch.no_grad()
def test_a_photograph_that_did_not_move_is_seen_as_it_is():
    ordinary = make("timm vit")
    photos = torch.stack(list(photographs(32).values()))
    adapted = ts.adapt(ordinary)
    at_home = (ts.origin(adapted, photos) == 0).all(1)
    assert at_home.sum() >= 3  # of 6, at this size
    assert torch.equal(adapted(photos)[at_home], ordinary(photos)[at_home])


@pytest.mark.parametrize(
    ("name", "criterion"),
    [("timm hiera", "fixed"), ("transformers swin, classes", "max_norm"), ("torchvision vit", "learned")],
)
def test_gradients(name, criterion):
    model, image = ts.adapt(make(name), criterion=criterion), torch.rand(2, 3, 32, 32)
    gradients = []
    for shown in (image, moved(image)):
        model.zero_grad()
        shown = shown.clone().requires_grad_()
        outputs(model, shown)[0].square().sum().backward()
        gradients.append((shown.grad, patch(model).weight.grad.clone()))
    (of_image, weight), (of_moved, again) = gradients
    assert weight.abs().sum() > 0
    assert torch.equal(weight, again)
    assert torch.equal(moved(of_image), of_moved)
    if criterion == "learned":
        model.train()
        outputs(model, image)[0].square().sum().backward()
        assert patch(model).criterion.score.weight.grad.abs().sum() > 0


SEVERAL = [(name, how, "max_norm") for name in IMAGES if name not in ALIKE for how in ("aot_eager", "export")]


@pytest.mark.parametrize(
    ("name", "how", "criterion"),
    [
        ("timm vit", "eager", "max_norm"),
        ("torchvision vit", "export", "fixed"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in SEVERAL),
    ],
)
@in_own_process
@torch.no_grad()
def test_compile_and_export(name, how, criterion):
    model, image = ts.adapt(make(name), criterion=criterion), torch.rand(2, 3, 32, 32)
    if how == "export":
        network = torch.export.export(model, (image,)).module()
    else:
        network = torch.compile(model, backend=how, fullgraph=True)
    before, after = outputs(network, image), outputs(network, moved(image))
    assert same(before, after)
    assert all(map(torch.allclose, before, outputs(model, image)))


@torch.no_grad()
def test_files_pipelines_and_training_calls_of_transformers(tmp_path):
    adapted, photo = ts.adapt(make("transformers vit, classes")), photographs(32)["rocket"]
    adapted.save_pretrained(tmp_path)
    loaded = type(adapted).from_pretrained(tmp_path)
    assert not any(isinstance(part, FrameConv) for part in loaded.modules())
    assert same(outputs(ts.adapt(loaded).eval(), photo[None]), outputs(adapted, photo[None]))
    processor = hf.ViTImageProcessor(size={"height": 32, "width": 32})
    pipeline = hf.pipeline("image-classification", model=adapted, image_processor=processor)
    answers = [
        pipeline(Image.fromarray((shown * 255).byte().permute(1, 2, 0).numpy())) for shown in (photo, moved(photo))
    ]
    assert answers[0] == answers[1]
    output = adapted.train()(pixel_values=photo[None], labels=torch.tensor([2]))
    assert type(output).__name__ == "ImageClassifierOutput"
    assert output.loss > 0


def test_the_audit_of_a_pipeline_beside_its_twin(run_unchecked):
    shown = run_unchecked(Path(__file__).parents[2] / "examples" / "adapt_transformers.py")
    assert " ".join(shown.split()).endswith("under every circular shift tried, bit for bit.")


@pytest.mark.parametrize(
    "criterion",
    [Busiest(), "input_norm", "spot", {"name": "max_norm", "p": 1}, ts.LearnedScore, ts.FixedOffset((1, 2))],
)
def test_other_criteria(criterion):
    adapted = ts.adapt(make("timm dinov2"), criterion=criterion)
    images = torch.cat([torch.rand(4, 3, 32, 32), photographs(32)["coffee"][None]])
    assert_invariant(adapted, images, shifts=8)
    assert len(ts.explain(adapted, images).decisions) == 1


def test_random_grids_while_training():
    model = ts.adapt(make("timm vit"), criterion="max_norm", grid_drop_rate=1.0)
    image = torch.rand(1, 3, 32, 32).expand(300, -1, -1, -1)
    assert_invariant(model, image[:3], shifts=3)
    offsets = patch(model).train().choose(image).offset
    assert offsets.unique(dim=0).shape[0] > 60  # of the 64 phases of a patch of 8
    with pytest.raises(ValueError, match=r"random while training.*needs model.eval"):
        ts.origin(model, image)


def test_mode_type_frozen_weights_and_hooks_are_kept():
    model = make("timm vit").to(torch.bfloat16).train()
    model.patch_embed.requires_grad_(False)
    calls = []
    model.patch_embed.proj.register_forward_hook(lambda *_: calls.append(1))
    adapted = ts.adapt(model)
    assert adapted.training
    assert adapted.patch_embed.proj.criterion.training
    assert adapted.head.weight.dtype == torch.bfloat16
    assert [part.requires_grad for part in adapted.parameters()] == [part.requires_grad for part in model.parameters()]
    assert_invariant(adapted.eval(), torch.rand(2, 3, 32, 32).to(torch.bfloat16), shifts=3)
    assert len(calls) == 4
    learned = ts.adapt(make("timm vit").double(), criterion="learned")
    assert {part.dtype for part in learned.parameters()} == {torch.float64}


def test_positions_of_an_image_that_the_network_casts():
    model = ts.adapt(make("transformers vit").to(torch.bfloat16), criterion="max_norm")
    assert torch.equal(ts.origin(model, HOSTILE), ts.origin(model, HOSTILE.bfloat16()))
    assert_equivariant(lambda image: ts.features(model, image)[-1], HOSTILE[::4], shifts=2)


def test_wrappers_are_taken_off(tmp_path):
    ordinary, image = make("timm vit"), torch.rand(1, 3, 32, 32)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        distributed = nn.parallel.DistributedDataParallel(ordinary)
        for wrapped in (nn.DataParallel(ordinary), distributed, torch.compile(ordinary, backend="eager")):
            adapted = ts.adapt(wrapped)
            assert type(adapted) is type(ordinary)
            assert torch.equal(adapted(image), adapted(moved(image)))
    finally:
        torch.distributed.destroy_process_group()
    assert type(ts.adapt(nn.DataParallel(ts.create_model("swin_mini")))) is ts.models.Swin


def test_other_sizes():
    for name in ("timm vit, dynamic size", "transformers swin", "torchvision swin", "transformers dinov2"):
        adapted = ts.adapt(make(name))
        step = patch(adapted).factor[0]
        with pytest.raises(ValueError, match=f"height {33}: needs a multiple of {step}, e.g. 32 or {32 + step}"):
            adapted(torch.rand(1, 3, 33, 40))
    assert_invariant(ts.adapt(make("timm vit, dynamic size")), torch.rand(2, 3, 40, 48), shifts=4)


def adapted(name="timm vit", **more):
    return ts.adapt(make(name), **more)


def of_timm(**arguments):
    return ts.adapt(timm.create_model(**arguments, depth=1))


def resized():
    model = adapted()
    model.set_input_size(img_size=32, patch_size=4)
    return model


LINEAR = {"model_name": "naflexvit_base_patch16_gap", "embed_dim": 16, "num_heads": 2}
HYBRID = {"model_name": "vit_tiny_r_s16_p8_224"}
FEATURES = {"model_name": "vit_tiny_patch16_224", "features_only": True, "out_indices": [0]}
IMAGE, CLIP = torch.rand(1, 3, 32, 32), torch.rand(1, 3, 4, 32, 32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: of_timm(**LINEAR), TypeError, "NaFlexVit cannot .* needs .*Eva.*Dinov2Model.*canonical"),
        (lambda: of_timm(**HYBRID), TypeError, "needs an ordinary .*canon"),
        (lambda: of_timm(**FEATURES), TypeError, r"features_only.*trueshift.features.*canonicalize"),
        (lambda: ts.adapt(adapted()), ValueError, "adapted already: needs revert"),
        (lambda: adapted(anchor=True), TypeError, "anchor: .* needs criterion, grid_drop_rate or circular alone"),
        (lambda: adapted(grid_drop_rate=0.5), ValueError, "needs a criterion that chooses"),
        (lambda: adapted(criterion="none"), ValueError, "needs one of"),
        (lambda: ts.revert(make("timm vit")), TypeError, "what adapt gave"),
        (lambda: ts.origin(make("timm vit"), IMAGE), TypeError, "needs canonicalize"),
        (lambda: resized()(IMAGE), RuntimeError, "replaced after adapt: set sizes first"),
        (
            lambda: adapted("torchvision mvit", criterion="max_norm")(CLIP),
            NotImplementedError,
            "needs criterion 'fixed",
        ),
        (lambda: ts.features(adapted("torchvision mvit"), CLIP), TypeError, "gives no maps"),
        (lambda: ts.features(adapted("transformers swin"), torch.rand(1, 3, 32, 22)), ValueError, "8 x 6 maps"),
        (lambda: adapted()(IMAGE / 0), ValueError, "NaN or infinity"),
        (lambda: adapted()(IMAGE.byte()), TypeError, "floating-point"),
        (lambda: list(map(adapted(), [IMAGE.numpy()])), TypeError, r"was given ndarray: needs a tensor \[B, C, H, W\]"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_can(call, error, message, our_errors):
    with pytest.raises(error, match=message):
        call()
