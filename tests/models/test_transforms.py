"""Networks under the transforms of torch.func: derivatives of all kinds, and images one by one."""

import pytest
import torch
from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap

from trueshift import FieldNet, create_model

THREE = {"embed_dim": (8, 8, 8), "depths": (1, 1, 1), "num_heads": (1, 1, 1)}
TWO = {"embed_dim": 8, "depths": (2, 1), "num_heads": (1, 2)}
NETWORKS = {
    "swin_mini": TWO,
    "a_swin_mini": {**TWO, "criterion": "learned", "border": "closed"},
    "a_swinv2_mini": {**TWO, "grids": 2},
    "a_cvt_mini": THREE,
    "a_mvitv2_mini": THREE,
}


def made(name):
    """In float64, so that derivatives can be compared closely; and two images."""
    torch.manual_seed(0)
    if name == "field":
        model = FieldNet("a_swinv2_mini", 3, **TWO)
    else:
        model = create_model(name, num_classes=3, **NETWORKS[name])
    return model.eval().double(), torch.rand(2, 3, 32, 32, dtype=torch.float64)


every = pytest.mark.parametrize("name", [*NETWORKS, "field"])


@every
def test_derivatives_agree(name):
    model, (image, direction) = made(name)

    def alone(image):
        return model(image[None])[0]

    def slope(image):
        return alone(image).square().sum()

    value, forward = jvp(alone, (image,), (direction,))
    back = vjp(alone, image)[1](value)[0]
    torch.testing.assert_close((forward * value).sum(), (back * direction).sum())
    torch.testing.assert_close(jacrev(lambda image: alone(image).flatten()[:2])(image)[1], _by_autograd(alone, image))
    curved = jvp(grad(slope), (image,), (direction,))[1]
    torch.testing.assert_close(curved, grad(lambda image: (grad(slope)(image) * direction).sum())(image))


def _by_autograd(alone, image):
    return torch.autograd.grad(alone(image.requires_grad_()).flatten()[1], image)[0]


@every
def test_images_one_by_one_are_the_batch_and_move_alike(name):
    model, images = made(name)
    one_by_one, moved = (
        vmap(lambda image: model(image[None])[0])(each) for each in (images, images.roll((3, 8), (2, 3)))
    )
    torch.testing.assert_close(one_by_one, model(images))
    if name.startswith("a_"):
        assert torch.equal(one_by_one, moved)
    if name == "field":
        assert torch.equal(one_by_one.roll((3, 8), (2, 3)), moved)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_single_images_add_up_to_those_of_the_batch(name):
    model, images = made(name)

    def loss(parameters, image):
        return functional_call(model, parameters, (image[None],)).square().sum()

    each = vmap(grad(loss), (None, 0))(dict(model.named_parameters()), images)
    model(images).square().sum().backward()
    for key, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(each[key].sum(0), expected, msg=key)
