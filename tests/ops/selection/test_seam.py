"""Where the border of a photograph was."""

import torch

from trueshift.ops.selection.seam import seam_near, seam_scores


def test_scores_are_twice_a_difference_less_both_neighbours():
    """By hand: differences to the line before are 2 3 1 6 0 8, around the circle."""
    lines = torch.tensor([0.0, 3, 4, 10, 10, 2])
    by_hand = [-7, 3, -7, 11, -14, 14]  # 2 * 2 - 8 - 3, 2 * 3 - 2 - 1, ...
    unit = 2.0**-11  # the smallest power of two above half the range, 8, in 14 bits
    expected = torch.tensor([by_hand], dtype=torch.float64) * 3 / unit
    image = lines[None, :, None, None].expand(1, 6, 3, 1)
    rows, columns = seam_scores(image)
    assert torch.equal(rows, expected)
    assert torch.equal(columns, torch.zeros(1, 3, dtype=torch.float64))
    assert torch.equal(seam_scores(image.transpose(1, 2))[1], expected)


def test_each_line_belongs_to_the_token_that_starts_at_it_or_next():
    scores = torch.rand(1, 12, dtype=torch.float64)
    for start in range(4):
        near = seam_near(scores, torch.tensor([start]), 4)
        assert (start + 4 * int(near.argmax()) - int(scores.argmax())) % 12 < 4
        assert near.max() == scores.max()
