"""The mean over several grids: exact where the network is, and a mean over rolled images for any other."""

import pytest
import torch
from model_checks import narrow
from timm import create_model
from torch import nn

import trueshift
from trueshift.ops.geometry.grid import displacements
from trueshift.testing import hostile_images

FAMILIES = ("swin", "swinv2", "cvt", "mvitv2")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("criterion", ["max_norm", "spot"])
def test_a_mean_over_grids_is_exact_and_is_the_mean(family, criterion):
    torch.manual_seed(0)
    sizes = {**narrow(family), "criterion": criterion}
    network = trueshift.create_model(f"a_{family}_mini", **sizes).eval()
    model = trueshift.mean_over_grids(network, 4)
    image = torch.cat([torch.rand(1, 3, 32, 32), hostile_images(32)["one bright pixel"][None]])
    with torch.no_grad():
        logits = model(image)
        shifted = model(torch.stack([image[0].roll((5, 2), (1, 2)), image[1].roll((31, 1), (1, 2))]))
        assert torch.equal(shifted, logits)
        same = trueshift.create_model(f"a_{family}_mini", **sizes, grids=4).eval()
        same.load_state_dict(network.state_dict())
        assert torch.equal(same(image), logits)
        assert torch.equal(trueshift.mean_over_grids(nn.DataParallel(network), 4).eval()(image), logits)
        chosen = network.patch_embed.choose(image)
        start = chosen.offset if chosen.spot is None else chosen.spot
        each = [network(image, start=start + away) for away in displacements(4, model.stride)]
        torch.testing.assert_close(logits, torch.stack(each).mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(each[0], network(image), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(each[0], each[1])


def test_a_network_with_several_grids_is_saved_so_and_trains_on_one(tmp_path):
    torch.manual_seed(0)
    model, image = trueshift.create_model("a_swin_mini", **narrow("swin"), grids=2).eval(), torch.rand(2, 3, 32, 32)
    model.save_pretrained(tmp_path)
    again = trueshift.from_pretrained(tmp_path).eval()
    assert again.config.grids == 2
    with torch.no_grad():
        assert torch.equal(again(image), model(image))
        one = model.train()(image)
        assert torch.equal(one, model.forward_head(model.forward_features(image)))
        assert not torch.allclose(one, model.eval()(image))
    with pytest.raises(ValueError, match="2 grids without pooling"):
        model.reset_classifier(0, "")
    model.prune_intermediate_layers(1)  # maps are left, and one grid
    assert model(image).dim() == 4


def test_a_mean_over_the_grids_of_any_model():
    class Corner(nn.Module):
        def forward(self, image):
            return {"logits": image[:, :, 0, 0]}

    image = torch.rand(2, 3, 8, 8)
    found = trueshift.mean_over_grids(Corner(), 4, stride=4)(image)["logits"]
    torch.testing.assert_close(found, image[:, :, :4:2, :4:2].mean((2, 3)))
    with pytest.raises(ValueError, match="needs stride"):
        trueshift.mean_over_grids(Corner(), 4)
    with pytest.raises(ValueError, match="3 grids: needs one of 1, 2, 4, 8, 16"):
        trueshift.mean_over_grids(Corner(), 3, stride=4)


def test_what_is_exact_already_has_no_further_grids():
    """It would undo the roll; around the mean it is exact, and another answer than without."""
    ordinary = trueshift.create_model("swin_mini", **narrow("swin")).eval()
    vit = create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1)
    anchored = trueshift.create_model("swin_mini", **narrow("swin"), anchor=True)
    for exact in (trueshift.canonicalize(ordinary), anchored, trueshift.adapt(vit)):
        with pytest.raises(ValueError, match=r"needs canonicalize\(mean_over_grids\(ordinary, 4\)\)"):
            trueshift.mean_over_grids(exact, 4, stride=2)
    image = torch.rand(1, 3, 32, 32)
    model = trueshift.canonicalize(trueshift.mean_over_grids(ordinary, 4)).eval()
    with torch.no_grad():
        assert torch.equal(model(image), model(image.roll((5, 3), (2, 3))))
        assert not torch.allclose(model(image), trueshift.canonicalize(ordinary)(image))
