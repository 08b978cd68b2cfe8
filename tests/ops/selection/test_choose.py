import torch

from trueshift.ops.selection.choose import choose


def scores(*rows):
    return torch.tensor(rows, dtype=torch.float64).view(len(rows), 2, 2)


def never(needed):
    raise AssertionError("the content was looked at without a tie")


def test_the_largest_score_wins_and_the_margin_is_relative():
    choice = choose((scores([1.0, 4.0, 3.0, 2.0], [0.0, 0.0, 0.0, 2.0]),), never)
    assert choice.offset.tolist() == [[0, 1], [1, 1]]
    assert choice.margin.tolist() == [0.25, 1.0]
    assert choice.tied.tolist() == [False, False]
    choice = choose((scores([-3.0, -1.0, -2.0, -4.0], [0.0, -1.0, -1.0, -1.0]),), never)
    assert choice.offset.tolist() == [[0, 1], [0, 0]]
    assert (choice.margin > 0).all()
    single = choose((torch.ones(2, 1, 1, dtype=torch.float64),), never)
    assert single.offset.tolist() == [[0, 0], [0, 0]]
    assert single.margin.isposinf().all()


def test_later_scores_and_then_the_content_decide_where_earlier_ones_tie():
    choice = choose((scores([5.0, 5.0, 5.0, 4.0]), scores([1.0, 2.0, 1.5, 9.0])), never)
    assert choice.offset.tolist() == [[0, 1]]
    assert choice.margin.tolist() == [0.2]  # the last grid, by its first score; 0.25 for the others by the second
    assert not choice.tied.any()
    keys = torch.zeros(2, 4, 4, dtype=torch.int64)
    keys[0, 3, 2] = 7  # coset (1, 0)
    keys[1, 0, 3] = 7  # coset (0, 1), which lost by its score
    choice = choose((scores([5.0, 5.0, 5.0, 5.0], [1.0, 0.0, 0.0, 1.0]),), lambda needed: keys)
    assert choice.offset.tolist() == [[1, 0], [0, 0]]
    assert choice.tied.tolist() == [True, True]
    assert choice.margin.tolist() == [0.0, 0.0]


def test_behind_an_anchor_scores_closer_than_rounding_tie():
    """Another kernel may round them the other way around; of those that tie the first is taken."""
    close = scores([1.0, 1.0 + 1e-7, 0.5, 1.0 + 1e-4], [2.0, 2.0 + 1e-6, 0.5, 2.0 - 1e-6])
    assert choose((close,), None).offset.tolist() == [[1, 1], [0, 0]]
    assert choose((-close,), None).offset.tolist() == [[1, 0], [1, 0]]
    assert choose((close,), never).offset.tolist() == [[1, 1], [0, 1]]
