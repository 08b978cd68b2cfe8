"""What older tools of torch make of our networks: the same answers, or a word about which tool does."""

import pytest
import timm
import torch
from torch import nn

import trueshift as ts
from trueshift.layers import AdaptiveTokenize
from trueshift.testing import photographs

pytestmark = [
    pytest.mark.usefixtures("our_errors"),  # sizes are tensors or symbols in a trace
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Currently, qnnpack incorrectly ignores reduce_range:UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "anchor"), [("a_cvt_mini", True), ("a_swin_mini", False)])
@torch.no_grad()
def test_tracing_an_adaptive_network_is_refused_with_what_works(name, anchor):
    """A trace would keep the branch that one image takes, also for ties of another."""
    for model in (ts.create_model(name, anchor=anchor).eval(), AdaptiveTokenize()):
        with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace.*: needs torch\.export.*export_onnx"):
            torch.jit.trace(model, IMAGES)


@pytest.mark.parametrize("name", ["swin_mini", "cvt_mini"])
def test_an_ordinary_network_can_be_traced(name):
    model = ts.create_model(name, embed_dim=16 if "swin" in name else (16, 16, 32), depths=(1, 1, 1)).eval()
    traced = torch.jit.trace(model, IMAGES)  # checked without gradients, by torch itself
    with torch.no_grad():
        assert torch.allclose(traced(IMAGES[:1]), model(IMAGES[:1]), atol=1e-5)


def test_scripting_is_refused_with_what_works():
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1)
    ours = [ts.create_model(name) for name in ("swin_mini", "a_cvt_mini")]
    for model in (*ours, ts.UperNet(ours[1], 3, channels=8), nn.Sequential(ours[1]), ts.adapt(vit), AdaptiveTokenize()):
        with pytest.raises(NotImplementedError, match=r"torch\.jit\.script .*: needs torch\.export.*torch\.jit\.trace"):
            torch.jit.script(model)


def test_a_symbolic_trace_is_refused_with_what_works():
    with pytest.raises(NotImplementedError, match=r"torch\.fx traces without an image.*: needs features_only=True"):
        torch.fx.symbolic_trace(ts.create_model("a_cvt_mini").eval())


@pytest.mark.parametrize(  # other families have no projection that is scored
    ("name", "arguments"),
    [("a_swin_mini", {}), ("a_swinv2_mini", {"anchor": False}), ("a_swin_mini", {"criterion": "learned"})],
)
def test_dynamic_quantization_leaves_the_choices_alone(name, arguments):
    model = ts.create_model(name, **arguments).eval()
    try:
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        small.head.fc(torch.ones(1, model.num_features))
    except RuntimeError as error:
        pytest.skip(f"torch's quantization does not run on this CPU: {error}")
    image = photographs(32)["rocket"][None]
    with torch.no_grad():
        for chosen, wanted in zip(small.features(image), model.features(image), strict=True):
            assert torch.equal(chosen.grid.origin, wanted.grid.origin)
        assert torch.equal(small(image), small(ts.circular_shift(image, (3, 5), (2, 3)))) or "anchor" in arguments
        torch.testing.assert_close(small(image), model(image), rtol=0, atol=0.05)
    assert small(image).shape == (1, 10)  # also where a gradient might be asked for
