import pytest
import torch
from unchecked import in_own_process

from trueshift.layers.merge import gather_patches
from trueshift.ops.geometry import shift
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_pad, circular_shift, circular_take, pair, shifted_views


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_is_a_roll_of_each_image_against_the_offset(dtype):
    x = torch.rand(3, 6, 5, 4).mul(100).to(dtype)
    offset = torch.tensor([[1, 2], [-4, 13], [0, 0]])
    shifted = circular_shift(x, offset)
    for image, (row, column) in enumerate(offset.tolist()):
        assert torch.equal(shifted[image], torch.roll(x[image], (-row, -column), (0, 1)))
    for dims in (IMAGE_DIMS, (-2, -1)):
        assert torch.equal(circular_shift(x.permute(0, 3, 1, 2), offset, dims), shifted.permute(0, 3, 1, 2))
    assert torch.equal(circular_shift(x[..., 0], offset), shifted[..., 0])


@pytest.mark.parametrize("dims", [(1, 2), (2, 3)])
@pytest.mark.parametrize("stride", [1, 2, (3, 2)])
def test_take_is_a_shift_and_a_stride(dims, stride):
    x = torch.rand(2, 6, 6, 6, dtype=torch.float64, requires_grad=True)
    offset = torch.randint(-9, 9, (2, 2))
    where = [slice(None)] * 4
    for dim, step in zip(dims, pair(stride), strict=True):
        where[dim] = slice(None, None, step)
    assert torch.equal(circular_take(x, offset, stride, dims), circular_shift(x, offset, dims)[tuple(where)])
    assert torch.autograd.gradcheck(circular_take, (x, offset, stride, dims), fast_mode=True)
    assert torch.autograd.gradgradcheck(circular_take, (x, offset, stride, dims), fast_mode=True)


@pytest.mark.parametrize(
    "pads", [((0, 0), (0, 0)), ((1, 1), (2, 0)), ((0, 3), (0, 0)), ((4, 4), (5, 5)), ((7, 11), (11, 7))]
)
def test_padding_goes_around_as_often_as_needed_and_from_anywhere(pads):
    x, start = torch.rand(3, 4, 5, 2, dtype=torch.float64), torch.tensor([[0, 0], [1, 5], [9, 13]])
    rows, columns = pads
    wanted = x[:, torch.arange(-rows[0], 4 + rows[1]) % 4][:, :, torch.arange(-columns[0], 5 + columns[1]) % 5]
    assert torch.equal(circular_pad(x, *pads), wanted)
    assert torch.equal(shift.pad_by_index(x, *pads, None), wanted)  # as on a GPU
    assert torch.equal(circular_pad(x, *pads, start), circular_pad(circular_shift(x, start), *pads))
    x.requires_grad_()
    assert torch.autograd.gradcheck(circular_pad, (x, *pads, start), fast_mode=True)
    assert torch.autograd.gradcheck(circular_pad, (x, *pads), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: circular_pad(x, *pads).square(), (x,), fast_mode=True)


@pytest.mark.parametrize("window", [(1, 1), (2, 3), (6, 5), (7, 11)])
def test_views_from_every_place_of_a_window_are_shifts(window):
    x = torch.rand(2, 6, 5, 4)
    views = shifted_views(x, window)
    assert (len(views), len(views[0])) == window
    for m, row in enumerate(views):
        for n, view in enumerate(row):
            assert torch.equal(view, circular_shift(x, (m, n)))


@pytest.mark.slow
@in_own_process
def test_compiled_gradients_of_patches_stay_in_their_memory():
    """By Tensor.unfold, torch 2.13 crashes here."""
    x, weight = torch.randn(16, 8, 8, 128, requires_grad=True), torch.randn(512, 256)

    def loss(x):
        return (gather_patches(x, (2, 2)) @ weight).square().sum()

    own, compiled = (torch.autograd.grad(way(x), x)[0] for way in (loss, torch.compile(loss)))
    torch.testing.assert_close(own, compiled)
