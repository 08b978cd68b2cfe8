"""Models in ONNX Runtime: the same choices as here, and logits that do not change when the image moves."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from foreign_models import make, outputs
from model_checks import broken_pairs, everything, random_shifts
from torch import nn
from unchecked import in_own_process

import trueshift as ts
from trueshift import adapt, onnx_export
from trueshift.models.registry import create_model
from trueshift.onnx_export import _as_onnx, export_onnx
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift
from trueshift.ops.selection.content_hash import fingerprint, origin_keys
from trueshift.ops.selection.exact import power_of_two_above
from trueshift.testing import hostile_images, photographs

SMALL = {"embed_dim": 32, "depths": (1, 1), "num_heads": (1, 2)}  # a Swin
SPOT = {**SMALL, "criterion": "spot", "border": "closed"}
FAMILIES = ("swin_mini", "swinv2_mini", "cvt_mini", "mvitv2_mini")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def images():
    """Hostile ones, and usual ones."""
    usual = torch.cat([torch.stack(list(photographs(32).values())), torch.rand(10, 3, 32, 32)])
    return torch.stack(list(hostile_images(32).values())), usual


def session_of(file):
    """Runs a file or the bytes of one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: [torch.from_numpy(part) for part in session.run(None, {name: x.contiguous().numpy()})]


# with a fixed batch it is exported in half the time; any number of images: the networks below
@pytest.mark.parametrize(
    ("name", "arguments", "shifts", "fixed_batch"),
    [
        ("a_swin_mini", SMALL, 8, True),
        slow("a_swin_mini", SPOT, 8, False),
        *(slow(f"a_{name}", {}, 40, False) for name in FAMILIES),
    ],
)
@in_own_process
@torch.no_grad()
def test_same_choices_and_exact_in_onnx_runtime(name, arguments, shifts, fixed_batch, tmp_path):
    """Later choices look at tokens that ONNX Runtime rounds otherwise; scores that are closer than rounding count as
    tied, and of those the first is taken, here and there. An image that repeats may start at any of its periods.
    """
    torch.manual_seed(1)  # whatever was imported: scores that are apart by just what counts as tied may differ
    model, (hostile, usual) = create_model(name, **arguments).eval(), images()
    batch = len(hostile) if fixed_batch else None
    run = session_of(str(export_onnx(model, tmp_path / "model.onnx", origins=True, batch=batch)))

    def exported(images):
        logits, origins = run(images)
        return logits, [], list(origins)

    mixed = torch.cat([usual, hostile])[:batch]
    for x in (mixed, hostile) if fixed_batch else (mixed, usual[:1], usual[:3], hostile):
        (logits, _, origins), (want, _, want_origins) = exported(x), everything(model)(x)
        torch.testing.assert_close(logits, want, rtol=0, atol=1e-4)
        want_origins = [model.tokenize(x).grid.origin, *want_origins]
        usual_ones = 0 if x is hostile else len(usual)
        for found, wanted in zip(origins, want_origins, strict=True):
            assert torch.equal(found[:usual_ones], wanted[:usual_ones]), "chose otherwise"
    broken, pairs = broken_pairs(exported, hostile, random_shifts(hostile, shifts))
    assert pairs == shifts * len(hostile)
    assert not broken


@pytest.mark.slow  # the network above has all but float64
@in_own_process
@torch.no_grad()
def test_keys_powers_and_float64_numbers_are_bit_equal_in_onnx_runtime():
    class Primitives(nn.Module):
        def forward(self, x):
            wide = x.double() * 0.1 + 1e-300
            peaks = wide.amax((1, 2, 3)).clamp_min(0) * 2.0**-300
            return wide, power_of_two_above(peaks), fingerprint(wide), origin_keys(x)

    hostile, module = images()[0][:, :, :8, :16], Primitives()
    x = torch.cat([hostile, -hostile, torch.full_like(hostile[:1], -0.0)]).permute(0, 2, 3, 1).contiguous()
    program = torch.export.export(module, (x,), strict=False)
    exported = session_of(_as_onnx(program, list("abcd"), 18).SerializeToString())(x)
    for want, torch_exported, got in zip(module(x), program.module()(x), exported, strict=True):
        assert torch.equal(want, torch_exported)
        assert torch.equal(want, got)


@in_own_process
def test_torchs_own_exporter_needs_no_mode_without_gradients():
    layer, tokens = ts.WindowAttention(16, window_size=4, num_heads=2).eval(), torch.rand(2, 8, 8, 16)
    written = torch.onnx.export(layer, (tokens,), dynamo=True, optimize=False, verbose=False).model_proto
    (found,) = session_of(written.SerializeToString())(tokens)
    torch.testing.assert_close(found, layer(tokens), rtol=0, atol=1e-5)


def swin(**more):
    return create_model("a_swin_mini", **SMALL, **more)


FILES = {  # what is exported, how, and whether its logits stay, move along or change with the image
    "canonicalize": (lambda: ts.canonicalize(create_model("swin_mini", **SMALL)), {}, "stays"),
    "mean over grids": (lambda: ts.mean_over_grids(swin(), 4), {}, "stays"),
    "steady": (lambda: ts.steady(swin(), 32), {"image_size": 49}, None),
    "one axis": (lambda: swin(circular="width"), {}, "stays"),
    "wide, two at a time": (swin, {"image_size": (32, 64), "batch": 2}, "stays"),
    "segmentation": (lambda: ts.UperNet("a_swin_mini", 3, channels=8, bins=(1, 2), **SMALL), {}, "moves"),
    **{name: (lambda name=name: create_model(name), {}, "changes") for name in FAMILIES},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
@in_own_process
@torch.no_grad()
def test_one_file_with_the_same_answers(kind, tmp_path):
    import onnx

    make, arguments, law = FILES[kind]
    model, batch = make().eval(), arguments.get("batch")
    path = export_onnx(model, tmp_path / "model.onnx", **arguments)
    assert os.listdir(tmp_path) == ["model.onnx"]
    written = onnx.load(path)
    onnx.checker.check_model(written, full_check=True)
    (shape,) = (
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in written.graph.input
    )
    assert shape[:2] == [batch or "batch", 3]
    metadata = {entry.key: entry.value for entry in written.metadata_props}
    assert metadata["dynamic_axes"] == ("" if batch else "batch")
    assert metadata["fixed_axes"].endswith(f"channels=3, height={shape[2]}, width={shape[3]}")
    run, x = session_of(str(path)), torch.rand(2, *shape[1:])
    logits = run(x)[0]
    for some in (x,) if batch else (x, x[:1], torch.cat([x, x[:1]])):
        torch.testing.assert_close(run(some)[0], model(some), rtol=0, atol=1e-3 if law == "moves" else 1e-4)
    for shift in ((0, 5), (0, 31)) if kind == "one axis" else ((3, 5), (31, 1)) if law else ():
        moved = run(circular_shift(x, shift, IMAGE_DIMS))[0]
        expected = circular_shift(logits, shift, IMAGE_DIMS) if law == "moves" else logits
        assert torch.equal(moved, expected) == (law != "changes"), shift


KEEP_THEIR_CLASS = ("timm vit", "torchvision vit", "torchvision swin", "transformers vit", "transformers swin, classes")


@pytest.mark.parametrize(
    ("name", "criterion", "plain"),
    [
        ("timm vit", "fixed", False),
        slow("timm vit", "max_norm", False),
        *(slow(name, criterion, False) for name in KEEP_THEIR_CLASS[1:] for criterion in ("fixed", "max_norm")),
        *(slow(name, "max_norm", True) for name in ("timm vit", "transformers vit")),  # by torch.onnx.export
    ],
)
@in_own_process
@torch.no_grad()
def test_adapted_networks_are_exact_in_onnx_runtime(name, criterion, plain, tmp_path):
    import onnx

    model, path, x = adapt(make(name), criterion=criterion), str(tmp_path / "model.onnx"), torch.cat(images())
    if plain:
        torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    else:
        export_onnx(model, path, 32)
    names, run, want = [value.name for value in onnx.load(path).graph.output], session_of(path), outputs(model, x)
    assert plain or names == (["last_hidden_state", "pooler_output"] if name == "transformers vit" else ["logits"])
    logits = run(x)
    for found, wanted in zip(logits, want, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    for shift in ((3, 5), (8, 16), (31, 1), (0, 9)):
        moved = run(x.roll(shift, IMAGE_DIMS))
        assert all(map(torch.equal, moved, logits)), shift


def small_segmenter():
    return ts.UperNet(swin(), 3, channels=8)


def adapted_vit():
    return adapt(make("timm vit"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": small_segmenter, "origins": True}, ValueError, "origins: needs a backbone of trueshift alone"),
        ({"model": small_segmenter, "image_size": 33}, ValueError, "needs a multiple of 4"),
        ({"model": adapted_vit}, ValueError, "image_size: needs height and width .* VisionTransformer, e.g. 224"),
        ({"model": adapted_vit, "image_size": 36}, ValueError, "height 36: needs a multiple of 8, e.g. 32 or 40"),
        ({"image_size": 33}, ValueError, "height 33: needs a multiple of 4, e.g. 32 or 36"),
        ({"batch": 0}, ValueError, "needs at least 1, or None"),
        ({"opset": 17}, ValueError, "needs at least 18"),
        ({"path": "nowhere/model.onnx"}, FileNotFoundError, "needs the name of a file in a folder that exists"),
        ({"path": "."}, FileNotFoundError, "needs the name of a file"),
        ({"model": nn.Identity}, TypeError, "needs a model of trueshift, .* or an adapted network"),
        ({"model": lambda: ts.video(swin(), 32), "image_size": 40}, TypeError, r"needs steady\(model, size\)"),
        ({"model": lambda: swin(grids=2), "origins": True}, ValueError, "origins of 2 grids: .* with grids=1"),
    ],
)
def test_what_cannot_be_exported_is_refused_at_once(tmp_path, arguments, error, message):
    given = {"path": tmp_path / "model.onnx", **arguments, "model": arguments.get("model", swin)()}
    with pytest.raises(error, match=message):
        export_onnx(**given)


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_without_onnx_it_names_what_to_install(monkeypatch, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install 'trueshift\[onnx\]'"):
        export_onnx(swin(), tmp_path / "model.onnx")


def test_an_export_that_fails_leaves_all_as_it_was(monkeypatch, tmp_path):
    def fail(*arguments, **options):
        raise RuntimeError("cannot be traced")

    path, model = tmp_path / "model.onnx", swin().train()
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="one ONNX file holds less than 2"):
        onnx_export._replace(path, SimpleNamespace(ByteSize=lambda: 2**31, SerializeToString=lambda: b"large"))
    monkeypatch.setattr(torch.export, "export", fail)
    model.head.eval()
    with pytest.raises(RuntimeError, match="traced"):
        export_onnx(model, path)
    assert model.training
    assert not model.head.training
    assert path.read_bytes() == b"old"
