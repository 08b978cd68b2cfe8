import pytest
import torch

from trueshift.ops.geometry.windows import token_norm, window_energy, window_partition, window_reverse


def test_partition_and_back():
    x = torch.rand(2, 6, 8, 3)
    windows = window_partition(x, (3, 4))
    assert windows.shape == (8, 3, 4, 3)
    assert torch.equal(windows[1], x[0, :3, 4:])
    assert torch.equal(window_reverse(windows, (6, 8)), x)


@pytest.mark.parametrize("p", [1, 2, 3, 2.5, float("inf")])
def test_norm_is_the_norm(p):
    x = torch.randn(2, 5, 4, 7) * torch.tensor([1e-3, 1e5]).view(2, 1, 1, 1)
    torch.testing.assert_close(token_norm(x, p), x.double().norm(p, dim=3), rtol=1e-6, atol=0)


def test_energy_moves_bit_for_bit_and_is_one_number_where_the_window_spans_the_grid():
    norms = torch.rand(2, 6, 8, dtype=torch.float64)
    moved = norms.roll((2, 5), (1, 2))
    assert torch.equal(window_energy(moved, (3, 4)), window_energy(norms, (3, 4)).roll((2, 5), (1, 2)))
    assert (window_energy(norms, (6, 8)).flatten(1).diff(dim=1) == 0).all()
    assert (window_energy(norms, (6, 4)).diff(dim=1) == 0).all()


def test_the_plain_sum_of_window_energies_cannot_choose():
    """Why G has to be nonlinear."""
    energy = window_energy(torch.rand(1, 8, 8, dtype=torch.float64), (4, 4))
    sums = torch.stack([energy[:, m::4, n::4].sum() for m in range(4) for n in range(4)])
    torch.testing.assert_close(sums, sums[:1].expand(16))
