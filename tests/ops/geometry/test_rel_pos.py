import pytest
import torch

from trueshift.layers import CircularRelativePosition
from trueshift.ops.geometry.grid import TokenGrid
from trueshift.ops.geometry.rel_pos import (
    circular_distance,
    circular_from_linear,
    circular_rows,
    linear_from_circular,
    linear_rows,
    positions,
    resize_circular_table,
    resize_linear_table,
    shortest_rows,
    shortest_signed,
)

SIZE = (16, 24)
STRIDES = [((4, 4), (4, 4)), ((4, 4), (8, 8)), ((2, 4), (8, 4)), ((8, 8), (4, 4)), ((2, 2), (16, 24))]
by_strides = pytest.mark.parametrize(("query", "key"), STRIDES)


def grid(stride, origin=(0, 0)):
    return TokenGrid(stride, torch.tensor([origin]), SIZE)


def test_distance_is_between_absolute_positions():
    query, key = grid((4, 4), (1, 2)), grid((8, 2), (13, 20))
    for axis in (0, 1):
        away = positions(query, axis)[:, :, None] - positions(key, axis)[:, None]
        assert torch.equal(circular_distance(query, key, axis), away % SIZE[axis])
    query, key = grid((4, 4), (4, 8)), grid((8, 8), (8, 0))
    assert positions(query, 1).tolist() == [[8, 12, 16, 20, 0, 4]]
    assert torch.equal(circular_distance(query, key, 0, unit=4) * 4, circular_distance(query, key, 0))
    with pytest.raises(ValueError, match="query stride 4: needs a multiple of the unit 3"):
        circular_distance(query, key, 0, unit=3)
    with pytest.raises(ValueError, match="queries on an image of"):
        circular_distance(query, TokenGrid((4, 4), key.origin, (16, 16)), 0)


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_shortest_way_around(size):
    signed = shortest_signed(torch.arange(size), size)
    assert torch.equal(signed % size, torch.arange(size))
    assert (signed.abs() <= size // 2).all()
    assert signed.max() == size // 2


def test_the_table_is_read_by_distance_with_both_phases():
    layer = CircularRelativePosition((4, 6), num_heads=2)
    query, key = grid((4, 4), (8, 4)), grid((8, 8), (4, 12))
    bias = layer(query, key)
    assert bias.shape == (1, 2, 24, 6)
    rows, columns = circular_distance(query, key, 0, 4), circular_distance(query, key, 1, 4)
    for i, j in [(0, 0), (7, 5), (23, 2)]:
        assert torch.equal(bias[0, :, i, j], layer.table[rows[0, i // 6, j // 3], columns[0, i % 6, j % 3]])


@by_strides
def test_linear_rows_are_timms_and_shortest_ones_too_where_no_way_around_is_shorter(query, key):
    """timm's formula: positions scaled to the finer of the two grids, with the most negative distance in row 0."""
    a, b = grid(query), grid(key)
    for axis in (0, 1):
        q, k = a.shape[axis], b.shape[axis]
        rows = torch.arange(q)[:, None] * max(k / q, 1) - torch.arange(k) * max(q / k, 1) + (k - 1) * max(q / k, 1)
        linear, shortest = linear_rows(a, b, axis)[0], shortest_rows(a, b, axis)[0]
        assert torch.equal(linear, rows.long())
        near = 2 * (positions(a, axis)[0][:, None] - positions(b, axis)[0]).abs() < SIZE[axis]
        assert torch.equal(shortest[near], linear[near])
        steps = SIZE[axis] // min(query[axis], key[axis])
        assert ((shortest - linear) % steps == 0).all()
        assert ((shortest >= 0) & (shortest <= 2 * steps - 2)).all()


@pytest.mark.parametrize("rows", [circular_rows, shortest_rows, circular_distance])
@pytest.mark.parametrize(("query", "key"), [*STRIDES, ((4, 4), (8, 12)), ((2, 4), (8, 2))])
def test_rows_do_not_change_when_both_grids_move(rows, query, key):
    """In the order of absolute positions: a grid that wraps starts its rows elsewhere."""
    phase = (1, 3) if rows is circular_distance else (4, 4)
    a, b = grid(query, phase), grid(key, (phase[0] + 4, phase[1] + 8))
    moved = torch.tensor([[3, 10]])
    c, d = (TokenGrid(g.stride, (g.origin - moved) % torch.tensor(SIZE), SIZE) for g in (a, b))
    for axis in (0, 1):
        assert torch.equal(rows(a, b, axis), rows(c, d, axis))


def test_tables_of_another_size():
    table, line = torch.randn(8, 3), torch.arange(7.0)[:, None]
    assert resize_circular_table(table, 8) is table
    assert torch.equal(resize_circular_table(table, 16)[::2], table)
    between = (table + table.roll(-1, 0)) / 2  # the last is between the last and the first
    torch.testing.assert_close(resize_circular_table(table, 16)[1::2], between)
    assert resize_linear_table(line, 7) is line
    assert resize_linear_table(line, 13)[6].item() == pytest.approx(3)  # the middle stays in the middle


@by_strides
def test_tables_of_the_line_and_of_the_circle_hold_the_same(query, key):
    a, b, c = grid(query, (8, 16)), grid(key, (8, 16)), grid(key)
    for axis in (0, 1):
        unit = min(query[axis], key[axis])
        steps, apart = SIZE[axis] // unit, key[axis] // unit
        around = torch.randn(steps, 3)
        line = linear_from_circular(around, apart)
        assert line.shape == (2 * steps - 1, 3)
        for rows in (shortest_rows, linear_rows):
            assert torch.equal(line[rows(a, b, axis)], around[circular_rows(a, b, axis)])
        assert torch.equal(circular_from_linear(line, apart), around)
        line = torch.randn(2 * steps - 1, 3)
        around = circular_from_linear(line, apart)
        assert torch.equal(around[circular_rows(a, c, axis)], line[shortest_rows(a, c, axis)])
