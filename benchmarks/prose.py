"""What numbers in sentences are made of: `<!-- number EXPRESSION -->1.2<!-- end -->`.

A recipe without a folder is one of the small models. Rates are in percent.
"""

from functools import partial
from statistics import mean, stdev
from typing import Any

from benchmarks.accuracy import numbers as cifar
from benchmarks.accuracy import store
from benchmarks.accuracy.numbers import C_CONS, S_CONS, TOP1, spread  # noqa: F401 -- for expressions
from benchmarks.common.record import load
from benchmarks.speed import tables as speed

SWIN = "swin_tiny_patch4_window7_224"
SHIPPED = [f"shipped/{family}_mini" for family in cifar.FAMILIES]
SIZES = {family.name: family.size for family in speed.FAMILIES.values()}


def rate(column: tuple[str, str], recipe: str, part: str = "") -> float:
    """Mean over the seeds, at the end of training or in a part that was measured later."""
    return mean(cifar.rates(recipe, column, part))


top1, c_cons, s_cons = (partial(rate, column) for column in (TOP1, C_CONS, S_CONS))
adapted_top1 = partial(top1, part="adapted")  # of the ordinary network, adapted without training
# in the frame that the anchor finds
canonical_top1, canonical_s_cons = (partial(column, part="canonical") for column in (top1, s_cons))


def deviation(recipe: str) -> float:
    """Of Top-1 over the seeds."""
    return stdev(cifar.rates(recipe, TOP1))


def gaps(recipe: str, other: str, column: tuple[str, str] = TOP1) -> list[float]:
    """By how much the first is ahead, for each seed that both have."""
    first, second = (store.numbers(name, store.FINAL, *column) for name in (recipe, other))
    return [100 * (first[seed] - second[seed]) for seed in sorted(first.keys() & second.keys())]


def listed(values: list[float], digits: int = 1) -> str:
    *first, last = [f"{value:.{digits}f}" for value in values]
    return f"{', '.join(first)} and {last}" if first else last


def steps(recipe: str) -> int:
    return int(store.numbers(recipe, store.TRAINING, "", "steps")[0])


def paper(table: str, row: str, column: int) -> float:
    """As printed, without its deviation."""
    return cifar.paper(table)[row][column][0] or 0.0


def wrong_gradients(file: str, model: str, kind: str) -> str:
    """Parameters whose gradient is wrong, of all."""
    rows = load(file)["result"]["rows"]
    row = next(row for row in rows if (row["model"], row["kind"]) == (model, kind))
    return f"{row['wrong']} of {row['parameters']}"


def _both(model: str, setting: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was measured of the reference and of the adaptive network, in a setting of the speed summary."""
    found = speed.find(speed.measured(), model=model, size=SIZES[model], **speed.SUMMARY[setting])
    if found is None:
        raise LookupError(f"{model} was not measured in {setting}")
    return found["by"][speed.REFERENCE], found["by"][speed.ADAPTIVE]


def slower(model: str, setting: str) -> str:
    """How many rounds the adaptive network lost to the reference."""
    theirs, ours = (row["seconds"] for row in _both(model, setting))
    return f"{sum(map(float.__lt__, theirs, ours))} of {len(ours)}"


def faster(model: str, setting: str) -> str:
    """Throughput of the adaptive network beside the reference's."""
    return f"{_both(model, setting)[1]['ratio']:.2f}"


def memory(model: str, setting: str) -> str:
    """Peak memory of the adaptive network beside the reference's."""
    theirs, ours = (row["allocated_mib"] for row in _both(model, setting))
    return f"{ours / theirs:.2f}"


def recorded_ratios(file: str) -> str:
    """Of the four models in one file."""
    found = {result["model"]: result["rows"][-1]["ratio"] for result in load(file)["result"]["results"]}
    return listed([found[model] for model in speed.MODELS], 2)


def of_block(module: str, mode: str) -> str:
    """The time of a module beside that of one block of Swin-T."""
    result = next(result for result in load("modules_speed_cuda")["result"]["results"] if result["mode"] == mode)
    return f"{next(row for row in result['rows'] if row['name'] == module)['adaptive_of_block']:.2f}"


def frame_kept(change: str, rule: str) -> float:
    """Percent of photographs whose frame stays with the content."""
    return load("frame_stability")["result"]["kept_percent"][change][rule]


def steady_flicker(file: str) -> float:
    """Frames that change an ordinary network's answer with `steady`, in percent of those without."""
    methods = load(f"motion_{file}")["result"]["methods"]
    alone, held = (methods[name]["measured"]["path-32"]["flicker"]["rate"] for name in ("ordinary", "ordinary, steady"))
    return 100 * held / alone


def number(expression: str) -> str:
    """One digit after the point for a float, thousands apart for an int, text as it is."""
    try:
        value = eval(expression, {**globals(), "__builtins__": {"abs": abs}})
    except Exception as error:
        raise SystemExit(f"<!-- number {expression} -->: {type(error).__name__}: {error}") from error
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"
