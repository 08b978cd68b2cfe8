"""What explain reports is what the network does."""

import json
from contextlib import ExitStack

import pytest
import torch
from model_checks import narrow

import trueshift as ts
from trueshift.explain import first_pixels
from trueshift.testing import photographs


@pytest.mark.parametrize(("size", "border"), [(32, "circular"), (32, "closed"), (40, None)])
def test_windows_start_where_it_says(size, border):
    """Of 40 pixels the second stage has 10 tokens, on which windows of 4 are cut off."""
    model = ts.create_model("a_swin_mini", img_size=size, border=border, **narrow("a_swin_mini")).eval()
    images, starts = torch.stack(list(photographs(size).values())), []
    with ExitStack() as hooks:
        for stage in model.layers:
            attention = stage.blocks[0].attn
            hooks.enter_context(attention.register_forward_pre_hook(lambda _, given: starts.append(given[1])))
        report = ts.explain(model, images)
    of_windows = [decision.offset for decision in report.decisions if decision.layer.endswith("align")]
    assert len(starts) == len(of_windows) == 3
    for start, offset, grid, window in zip(starts, of_windows, report.grids, report.windows, strict=True):
        assert torch.equal(start, offset)
        assert torch.equal(window.origin, (grid.origin + offset * torch.tensor(grid.stride)) % size)
    if size == 40:  # in the frame of the second stage windows start at these rows, and behind the border
        first, begin = report.grids[1].origin[0, 0].item(), starts[1][0, 0].item()
        wanted = sorted((first + 4 * row) % 40 for row in {0, *range(begin, 10, 4)})
        assert first_pixels(report.windows[1], report.grids[1], 0, 0) == wanted


def test_a_video_keeps_its_memory_and_a_wrapped_model_is_explained_like_itself():
    model = ts.create_model("a_swin_mini", **narrow("a_swin_mini")).eval()
    film, frames = ts.video(model, 32), torch.rand(2, 1, 3, 40, 40)
    film(frames[0])
    before = film.last, film.offset, film.jumped
    ts.explain(film, frames[1])
    assert all(one is other for one, other in zip((film.last, film.offset, film.jumped), before, strict=True))
    image = frames[0, :, :, :32, :32]
    inside = ts.explain(model, image)
    for wrapped in (torch.nn.DataParallel(model), torch.compile(model, backend="eager")):
        assert ts.explain(wrapped, image).table() == inside.table()
        assert torch.equal(ts.features(wrapped, image)[1].values, model.features(image)[1].values)


@pytest.mark.parametrize("name", ["a_swin_mini", "a_cvt_mini"])
def test_offsets_lead_to_the_grids_and_margins_do_not_move(name):
    model = ts.create_model(name, anchor=False, **narrow(name)).eval()
    dot = torch.zeros(1, 3, 32, 32)
    dot[..., 5, 7] = 1
    images = torch.cat([torch.stack(list(photographs(32).values())), dot])
    report = ts.explain(model, images)
    with torch.no_grad():
        stages = model.features(images)
    for grid, tokens in zip(report.grids, stages, strict=True):
        assert torch.equal(grid.origin, tokens.grid.origin)
    assert report.decisions[0].layer == "patch_embed"
    assert torch.equal(report.decisions[0].offset % 2, report.grids[0].origin % 2)
    for decision in report.decisions:
        assert (decision.offset >= 0).all()
        assert (decision.offset < torch.tensor(decision.stride)).all()
    anchored = ts.create_model(name, **narrow(name)).eval()
    still, moved = (ts.explain(anchored, each) for each in (images, ts.circular_shift(images, (3, 30), (2, 3))))
    for decision, other in zip(still.decisions, moved.decisions, strict=True):
        assert (decision.layer, decision.stride) == (other.layer, other.stride)
        assert torch.equal(decision.margin, other.margin)
        assert torch.equal(decision.tied, other.tied)


def test_as_data_as_text_and_as_an_image(tmp_path):
    report = ts.explain(ts.create_model("a_swin_mini").eval(), photographs(32)["chelsea"])
    rows = json.loads(json.dumps(report.rows()))
    assert [row["layer"] for row in rows][:3] == ["patch_embed", "layers.0.align", "layers.1.downsample"]
    assert "layers.1.downsample" in report.table()
    assert "stage 2: every 8 pixels from" in report.table()
    assert report.save(tmp_path / "deep" / "grids.png").stat().st_size > 10_000
    assert "0.123" not in repr(ts.explain(ts.create_model("a_swin_mini"), torch.full((3, 32, 32), 0.12345)))


def test_a_segmentation_network_is_explained_by_its_encoder():
    network = ts.UperNet("a_swin_mini", 3, channels=8, auxiliary=False).eval()
    image = photographs(32)["chelsea"]
    report, inside = ts.explain(network, image), ts.explain(network.encoder, image)
    assert len(report.figure().axes) == len(report.windows) == len(report.grids) == 3
    for mine, encoders in ((report.grids, inside.grids), (report.windows, inside.windows)):
        assert all(torch.equal(a.origin, b.origin) for a, b in zip(mine, encoders, strict=True))
    assert [decision.layer for decision in report.decisions] == [f"encoder.{each.layer}" for each in inside.decisions]


def test_any_module_of_adaptive_layers_without_grids_to_draw():
    layers = torch.nn.Sequential(ts.AdaptiveTokenize(3, 8, 4), ts.AlignWindows(4))
    report = ts.explain(layers, torch.randn(2, 3, 32, 32))
    assert [decision.layer for decision in report.decisions] == ["0", "1"]
    assert report.grids == ()
    with pytest.raises(ValueError, match=r"no grids to draw: needs a model of trueshift's; table\(\) has the choices"):
        report.figure()
    with pytest.raises(TypeError, match=r"a Conv2d chooses nothing: needs .*adapt\(model\)"):
        ts.explain(torch.nn.Conv2d(3, 4, 3), torch.rand(3, 8, 8))


def test_the_model_is_left_as_it_was():
    """Its mode, its batch statistics, and no hooks, also where the image is refused."""
    model = ts.create_model("a_cvt_mini").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ts.explain(model, torch.randn(2, 3, 32, 32))
    with pytest.raises(ValueError, match="multiple"):
        ts.explain(model, torch.randn(1, 3, 33, 32))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
