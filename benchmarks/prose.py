"""What numbers in sentences are made of: `<!-- number EXPRESSION -->1.2<!-- end -->`.

A recipe without a folder is one of the small models. Rates are in percent.
"""

from statistics import mean, stdev

from benchmarks.accuracy import numbers as cifar
from benchmarks.accuracy import store
from benchmarks.accuracy.numbers import C_CONS, S_CONS, TOP1, spread  # noqa: F401 -- for expressions
from benchmarks.common.record import load
from benchmarks.speed import tables as speed


def top1(recipe: str) -> float:
    return mean(cifar.trained(recipe, *TOP1))


def c_cons(recipe: str) -> float:
    return mean(cifar.trained(recipe, *C_CONS))


def s_cons(recipe: str) -> float:
    return mean(cifar.trained(recipe, *S_CONS))


def adapted_top1(recipe: str) -> float:
    """Of the ordinary network, adapted without training."""
    return mean(cifar.asked(recipe, "adapted", *TOP1))


def deviation(recipe: str) -> float:
    """Of Top-1 over the seeds."""
    return stdev(cifar.trained(recipe, *TOP1))


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


def slower(model: str, setting: str) -> str:
    """How many rounds the adaptive network lost to the reference, in a setting of the speed summary."""
    wanted = dict(zip(speed.TITLES, speed.SUMMARY, strict=True))[setting]
    found = speed.find(speed.measured(), model=model, size=speed.MODELS[model][1], **wanted)
    theirs, ours = (found["by"][name]["seconds"] for name in (speed.REFERENCE, speed.ADAPTIVE)) if found else ([], [])
    return f"{sum(map(float.__lt__, theirs, ours))} of {len(ours)}"


def training_kept(model: str) -> int:
    """Percent of the bare network's speed that training on real data keeps."""
    result = load(f"training_speed_{model}")["result"]
    row = result["rows"][0]
    return round(100 * result["batch"] / speed.seconds_per_step(row["log"]) / row["bare_median"])


def number(expression: str) -> str:
    """One digit after the point for a float, thousands apart for an int, text as it is."""
    try:
        value = eval(expression, {"__builtins__": {"abs": abs}}, globals())
    except Exception as error:
        raise SystemExit(f"<!-- number {expression} -->: {type(error).__name__}: {error}") from error
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"
