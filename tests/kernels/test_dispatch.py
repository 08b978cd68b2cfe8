"""Where kernels are used, and that a network with kernels is the same network."""

import pytest
import torch

from trueshift import AdaptiveMerge, AdaptiveTokenize, Tokens, create_model
from trueshift.ops import kernels
from trueshift.ops.nn.depthwise import depthwise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(not kernels.AVAILABLE, reason="needs Triton")


def test_a_folder_without_such_a_kernel_says_so():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kernels.nothing  # noqa: B018


@needs_triton
def test_transforms_of_torch_func_take_plain_code(both_ways):
    """Kernels read memory, which the tensors of a transform have not."""
    x, weight = torch.randn(1, 4, 4, 2, device=DEVICE), torch.randn(2, 1, 3, 3, device=DEVICE)

    def gradient():
        return torch.func.grad(lambda x: depthwise(x, weight, (1, 1), (1, 1)).square().sum())(x)

    torch.testing.assert_close(*both_ways(gradient))


@needs_triton
@pytest.mark.parametrize("layer", [AdaptiveTokenize(3, 8, 4), AdaptiveMerge(3)])
def test_a_grid_may_start_below_zero(both_ways, layer):
    layer, tokens = layer.to(DEVICE), Tokens.of_image(torch.randn(2, 3, 16, 16, device=DEVICE))
    given = tokens.values.permute(0, 3, 1, 2) if isinstance(layer, AdaptiveTokenize) else tokens
    start = torch.tensor([[-1, 3], [0, -9]], device=DEVICE)
    with torch.no_grad():
        found = [*both_ways(layer, given, start), layer(given, start % 16)]
    for each in found[1:]:
        assert torch.equal(each.grid.origin, found[0].grid.origin)
        torch.testing.assert_close(each.values, found[0].values)


TWO, THREE = (
    {"embed_dim": 16, "depths": (2, 1), "num_heads": (1, 2)},
    {"embed_dim": (8, 16, 16), "depths": (1, 1, 1), "num_heads": (1, 1, 2)},
)


@pytest.mark.slow
@needs_triton
@pytest.mark.usefixtures("quick_interpreter")  # overflows are looked for in each kernel alone
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("a_swin_mini_patch2_window4_32", TWO),
        ("a_swinv2_mini_patch2_window4_32", TWO),
        ("a_cvt_mini", THREE),
        ("a_mvitv2_mini", THREE),
    ],
)
def test_a_network_is_the_same_network(name, sizes, both_ways):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    net = create_model(name, num_classes=10, img_size=16, **sizes).to(DEVICE)
    state, images = {key: value.clone() for key, value in net.state_dict().items()}, torch.randn(2, 3, 16, 16)

    def logits_and_gradients():
        net.load_state_dict(state)
        with torch.no_grad():
            logits = net.eval()(images.to(DEVICE))
        loss = net.train()(images.to(DEVICE)).square().mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
        return logits, *[grad for grad in gradients if grad is not None]

    for plain, fused in zip(*both_ways(logits_and_gradients), strict=True):
        assert (plain - fused).abs().max() <= 1e-3 * plain.abs().max() + 1e-4
