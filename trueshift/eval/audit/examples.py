"""Which images an audit takes: evenly spread, and for a closer look the least consistent ones among them."""


def spread(count: int, limit: int) -> list[int]:
    """At most ``limit`` indices, evenly spread: the first images of a folder may all be of one class."""
    if not limit or limit >= count:
        return list(range(count))
    return [index * count // limit for index in range(limit)]


def choose_examples(consistency: dict[int, float], count: int) -> list[int]:
    """Half of them the least consistent images, half as they come."""
    worst = sorted(consistency, key=lambda index: (consistency[index], index))[: (count + 1) // 2]
    rest = [index for index in consistency if index not in worst]
    return worst + [rest[position] for position in spread(len(rest), count - len(worst))][: count - len(worst)]
