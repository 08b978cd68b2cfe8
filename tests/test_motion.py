"""The crop moves with the content, and its score depends on nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from unchecked import in_own_process

import trueshift
from trueshift import motion
from trueshift.ops.selection.content_hash import window_keys
from trueshift.testing import hostile_images, photographs

CROP, VIEW, WHOLE = 24, 30, 42  # two spots each way


MODEL = trueshift.steady(nn.Identity(), CROP)  # shows what the model saw
SEVERAL = trueshift.steady(nn.Identity(), CROP, crops=3)
HOSTILE = hostile_images(WHOLE)


def view(image: torch.Tensor, top: int, left: int) -> torch.Tensor:
    return image[:, :, top : top + VIEW, left : left + VIEW]


def chosen_in(image: torch.Tensor, corner: tuple[int, int], model: motion.Steady) -> list[tuple[int, int]]:
    """Where the crops start in the whole image."""
    crops = model.best(view(image, *corner), model.crops)
    return [tuple(at + start for at, start in zip(corner, crop.offset[0].tolist(), strict=True)) for crop in crops]


def contains(corner: tuple[int, int], crops: list[tuple[int, int]]) -> bool:
    return all(at <= start <= at + VIEW - CROP for crop in crops for at, start in zip(corner, crop, strict=True))


corners = st.tuples(st.integers(0, WHOLE - VIEW), st.integers(0, WHOLE - VIEW))


def pairs_that_share(image: torch.Tensor, model: motion.Steady) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the model saw in all pairs of views along a path that contain each other's crop."""
    seen = []
    for step in range(WHOLE - VIEW + 1):
        corner = (step, step // 2)
        seen.append((corner, chosen_in(image, corner, model), model(view(image, *corner))))
    return [
        (first[2], second[2])
        for first in seen
        for second in seen
        if contains(first[0], second[1]) and contains(second[0], first[1])
    ]


@pytest.mark.parametrize("name", ["random", *HOSTILE])
def test_views_that_contain_each_others_crops_give_the_same_bits(name):
    image = torch.rand(1, 3, WHOLE, WHOLE) if name == "random" else HOSTILE[name][None]
    repeats = window_keys(image.permute(0, 2, 3, 1), (CROP, CROP)).unique().numel() < (WHOLE - CROP + 1) ** 2
    for model in (MODEL, SEVERAL):
        pairs = pairs_that_share(image, model)
        assert repeats or len(pairs) > WHOLE - VIEW + 1  # more than each with itself
        assert all(torch.equal(first, second) for first, second in pairs)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), first=corners, second=corners, levels=st.sampled_from([2, 3, 256]))
def test_the_law_holds_for_any_two_views(seed, first, second, levels):
    image = torch.randint(levels, (1, 3, WHOLE, WHOLE), generator=torch.Generator().manual_seed(seed)) / 255
    for model in (MODEL, SEVERAL):
        chosen = [chosen_in(image, corner, model) for corner in (first, second)]
        if contains(first, chosen[1]) and contains(second, chosen[0]):
            assert torch.equal(model(view(image, *first)), model(view(image, *second)))


def test_a_score_that_depends_on_the_position_breaks_the_law(monkeypatch):
    honest = motion.crop_scores

    def leaning(image, size):
        scores = honest(image, size)
        return scores - (torch.arange(scores.shape[2]) - scores.shape[2] // 2).abs()  # the middle of the view

    monkeypatch.setattr(motion, "crop_scores", leaning)
    dots = torch.zeros(1, 3, WHOLE, WHOLE)
    dots[:, :, ::7, ::5] = 1.0
    dots[:, :, 14, 15:20] = torch.tensor([0.2, 0, 0, 0, 0])  # so that no two crops are the same
    pairs = pairs_that_share(dots, MODEL)
    assert not all(torch.equal(first, second) for first, second in pairs)


@pytest.mark.parametrize(
    ("crop", "room", "first", "last"),
    [
        ((20, 22), (28, 30), (10, 11), (18, 19)),  # one spot, the centre
        ((32, 32), (48, 40), (7, 11), (40, 28)),  # two each way, 17 rows or 9 columns apart
        ((40, 15), (43, 21), (8, 7), (35, 13)),  # seven rows of them, 4 apart
    ],
)
def test_a_spot_decides_for_the_crop_that_it_belongs_to(crop, room, first, last):
    """Where a crop can start at w positions along an axis, its spots are w pixels apart, as many as fit into it."""
    starts = [whole - length + 1 for whole, length in zip(room, crop, strict=True)]
    model = trueshift.steady(nn.Identity(), crop)
    for top in range(first[0], last[0] + 1, 3):
        for left in range(first[1], last[1] + 1, 3):
            image = torch.zeros(1, 3, *room)
            image[:, :, top, left] = 1.0
            chosen = model.choose(image)
            where = [(at - start) % count for at, start, count in zip((top, left), first, starts, strict=True)]
            assert chosen.offset.tolist() == [where]
            assert all(0 <= at - start < length for at, start, length in zip((top, left), where, crop, strict=True))
            rest = [count - 1 - start for count, start in zip(starts, where, strict=True)]
            assert chosen.margin.tolist() == [[*where, *rest]]


def test_scores_are_a_difference_of_two_triangles():
    """A known answer: one bright pixel of 4 units, seen at its own place and beside it."""
    image = torch.zeros(1, 1, 15, 16)
    image[0, 0, 7, 7] = 4 * motion.UNIT
    scores = motion.crop_scores(image, (15, 15))
    assert scores.tolist() == [[[3 * 2.0**48 + 4 * (625 * 9 - 81 * 25), 4 * (625 * 6 - 81 * 20)]]]


def test_the_mean_over_the_best_crops_in_the_order_of_their_scores():
    image = torch.rand(2, 3, VIEW, VIEW)
    found = SEVERAL.best(image, 5)
    assert torch.equal(found[0].offset, MODEL.choose(image).offset)
    for number in range(len(image)):
        places = [tuple(crop.offset[number].tolist()) for crop in found]
        scores = motion.crop_scores(image, (CROP, CROP))[number]
        assert [scores[place] for place in places] == scores.flatten().sort(descending=True).values[:5].tolist()
    seen = [motion.crop_at(image, crop.offset, (CROP, CROP)) for crop in found[:3]]
    torch.testing.assert_close(SEVERAL(image), torch.stack(seen).mean(0))
    assert len(SEVERAL.best(image[:, :, : CROP + 1, :CROP], 5)) == 2  # all that there are


def test_gradients_reach_the_crop_alone():
    image = torch.rand(1, 3, VIEW, VIEW, requires_grad=True)
    MODEL(image).sum().backward()
    top, left = MODEL.choose(image).offset[0].tolist()
    expected = torch.zeros_like(image)
    expected[:, :, top : top + CROP, left : left + CROP] = 1
    assert torch.equal(image.grad, expected)


@in_own_process
def test_under_the_compiler_and_exported_for_any_number_of_images():
    conv, image = nn.Conv2d(3, 4, 3), torch.rand(3, 3, VIEW, VIEW)
    model = trueshift.steady(conv, CROP, crops=2).eval()
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(image), model(image))
    sizes = ({0: torch.export.Dim("batch")},)
    for each in (model, trueshift.mean_over_grids(conv, 4, stride=2).eval()):
        program = torch.export.export(each, (image[:2],), dynamic_shapes=sizes, strict=False)
        assert torch.equal(program.module()(image), each(image))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trueshift.steady(nn.Identity(), 14), "at least 15"),
        (lambda: trueshift.steady(nn.Identity(), 24, crops=0), "0 crops: needs at least 1"),
        (lambda: MODEL(torch.rand(1, 3, 18, 40)), "18 x 40 pixels: needs at least the crop's 24 x 24"),
        (lambda: MODEL(torch.full((1, 3, VIEW, VIEW), float("nan"))), "NaN or infinity"),
        (lambda: trueshift.video(nn.Identity(), CROP, lead=-1), "needs 0 or more"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("step", "factor"), [((0, 1), 1), ((1, 0), 1), ((2, 1), 1), ((1, 2), 1e-38), ((1, 2), 1e30)])
def test_phase_correlation_finds_how_far_the_camera_moved(step, factor):
    """Whatever the range of the pixels."""
    photo = next(iter(photographs(80).values()))[None].double() * factor
    for dtype in (torch.float32, torch.float64):
        first, second = (photo[:, :, 8 + a : 72 + a, 8 + b : 72 + b].to(dtype) for a, b in ((0, 0), step))
        assert motion.image_motion(first, second).tolist() == [[-step[0], -step[1]]]
        assert motion.image_motion(second, first).tolist() == [list(step)]


def test_a_video_keeps_its_crop_where_steady_jumps():
    """Frames are bit-identical unless the crop jumped, and it jumps less often; also in one buffer for all frames."""
    jumps = {"steady": 0, "video": 0}
    for photo in photographs(96).values():
        model, shared = (trueshift.video(nn.Identity(), 32) for _ in range(2))
        last, buffer = None, torch.empty(1, 3, 48, 48)
        for frame in range(40):
            shown = photo[None, :, 20:68, frame : frame + 48]
            seen = model(shown)
            assert torch.equal(shared(buffer.copy_(shown)), seen)
            if last is not None:
                assert torch.equal(seen, last[0]) != bool(model.jumped)
                jumps["video"] += int(model.jumped)
                jumps["steady"] += int(not torch.equal(model.steady(shown), model.steady(last[1])))
            last = (seen, shown)
    assert 0 < jumps["video"] < 0.85 * jumps["steady"]


@pytest.mark.parametrize("make", [trueshift.steady, trueshift.video])
def test_the_images_and_clips_of_a_batch_do_not_see_each_other(make):
    clips, together = torch.rand(3, 3, WHOLE, WHOLE), make(nn.Identity(), CROP)
    alone = [make(nn.Identity(), CROP) for _ in clips]
    for frame in range(6):
        seen = together(view(clips, 0, frame))
        assert all(
            torch.equal(one(view(clip[None], 0, frame)), s[None])
            for one, clip, s in zip(alone, clips, seen, strict=True)
        )


def test_a_clip_begins_anew_after_reset():
    model, image = trueshift.video(nn.Identity(), CROP), torch.rand(1, 3, WHOLE, WHOLE)
    model(view(image, 0, 0))
    with pytest.raises(ValueError, match=r"needs frames of one shape, or reset\(\)"):
        model(image)
    model.reset()
    assert torch.equal(model(image), MODEL(image))


class Twice(nn.Module):
    """As transformers has them: an image by name, outputs of several kinds, and labels that go with the images."""

    def forward(self, pixel_values, labels=None):
        logits = pixel_values.mean((2, 3))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"logits": logits, "loss": loss, "name": "twice"}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: trueshift.steady(model, CROP),
        lambda model: trueshift.steady(model, CROP, crops=2),
        lambda model: trueshift.video(model, CROP),
        lambda model: trueshift.mean_over_grids(model, 4, stride=2),
        lambda model: trueshift.canonicalize(trueshift.mean_over_grids(model, 4, stride=2)),
    ],
    ids=["steady", "two crops", "video", "mean over grids", "nested"],
)
def test_images_by_name_and_labels_of_each_image(wrap):
    image, labels = torch.rand(2, 3, VIEW, VIEW), torch.tensor([2, 0])
    named, first = wrap(Twice())(pixel_values=image, labels=labels), wrap(Twice())(image, labels)
    assert torch.equal(named["logits"], first["logits"])
    assert named["logits"].shape == (2, 3)
    assert torch.equal(named["loss"], first["loss"])
    assert named["name"] == "twice"
    assert wrap(Twice())(image)["loss"] is None
    with pytest.raises(TypeError, match="needs \\[B, C, H, W\\] as the first argument, or as pixel_values"):
        wrap(Twice())()


class Classes(nn.Module):
    def forward(self, image):
        return image.mean((2, 3)).argmax(1)


def test_classes_have_no_mean():
    for wrap in (lambda model: trueshift.steady(model, CROP, 2), lambda model: trueshift.mean_over_grids(model, 2, 4)):
        with pytest.raises(TypeError, match="int64 has no mean: needs a model that gives logits"):
            wrap(Classes())(torch.rand(1, 3, VIEW, VIEW))
