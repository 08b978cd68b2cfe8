"""Tables of time and memory, from whichever of ``results/model_speed_*.json`` and the like are there.

A setting that was measured more than once is shown as it was measured last; one that was not says so.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from statistics import linear_regression
from typing import Any

import torch

from benchmarks.common.contestants import ADAPTIVE, FAMILIES, REFERENCE
from benchmarks.common.record import load, load_all, machine, table
from trueshift import create_model

MODELS = dict(
    zip((family.name for family in FAMILIES.values()), ("Swin-T", "SwinV2-T", "CvT-13", "MViTv2-T"), strict=True)
)
NOT_YET = "not measured yet"
MODES = {"eager": "eager", "compiled": "compiled", "graph": "CUDA graph"}
PRECISIONS = {"bf16": "bf16", "tf32": "TF32", "float32": "float32"}
MEDIANS = "medians of interleaved rounds with quartiles"
RATIOS = f"Ratios are throughputs against the reference, {MEDIANS}; 1 is parity."
WINOGRAD_UNTIL = "2026-11-17T02:02"  # d7ad81a

Result = dict[str, Any]


def _setting(work: str, precision: str, mode: str, batch: int, device: str = "cuda") -> Result:
    return {"work": work, "precision": precision, "mode": mode, "batch": batch, "device": device}


SUMMARY = {
    "bf16, compiled": _setting("inference", "bf16", "compiled", 128),
    "bf16, eager": _setting("inference", "bf16", "eager", 128),
    "TF32, eager": _setting("inference", "tf32", "eager", 128),
    "training, bf16, compiled": _setting("training", "bf16", "compiled", 256),
    "CPU, float32": _setting("inference", "float32", "eager", 8, "cpu"),
}
COMPILED, EAGER, TF32, TRAINING, CPU = SUMMARY.values()


def measured(pattern: str = "model_speed_*") -> list[Result]:
    """All results, the latest first, with where they were measured and their rows by name."""
    found = []
    for recorded in sorted(load_all(pattern), key=lambda each: each["date"], reverse=True):
        for result in recorded["result"]["results"]:
            where, by = machine(recorded, result["device"]), {row["name"]: row for row in result["rows"]}
            if result["device"] == "cpu" and recorded["date"] < WINOGRAD_UNTIL:
                where += f" (at commit {recorded['commit'][:10]}, when merges on a CPU used Winograd's products)"
            found.append({**result, "where": where, "by": by})
    return found


def find(results: Iterable[Result], **wanted: Any) -> Result | None:
    """The latest that was measured in this setting."""
    return next((each for each in results if all(each[key] == value for key, value in wanted.items())), None)


def _for_each_model(settings: Iterable[Result]) -> list[tuple[str, Result, Result | None]]:
    """Model, setting, and what was measured in it."""
    results, sizes = measured(), {family.name: family.size for family in FAMILIES.values()}
    return [
        (model, setting, find(results, model=model, size=sizes[model], **setting))
        for setting in settings
        for model in MODELS
    ]


def _noted(head: list[str], rows: list[list[str]], used: Iterable[Result | None], note: str) -> str:
    """A table and where its results come from."""
    places = "; ".join(dict.fromkeys(result["where"] for result in used if result))
    return table(head, rows, note.format(f"On {places}." if places else "Not measured yet."))


def ratio_cell(row: Result, inverse: bool = False) -> str:
    """Median and quartiles; of times instead of throughputs where inverse."""
    if "error" in row:
        return f"failed: {row['error'][:60]}"
    if row.get("ratio") is None:
        return NOT_YET
    middle, low, high = row["ratio"], *row["quartiles"]
    if inverse:
        middle, low, high = 1 / middle, 1 / high, 1 / low
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def speed_cell(row: Result) -> str:
    return f"{row['images_per_second']:,.0f} img/s" if "images_per_second" in row else ratio_cell(row)


def time_cell(row: Result) -> str:
    return f"{row['milliseconds']:.2f} ms" if "milliseconds" in row else ratio_cell(row)


def memory_ratio(result: Result, kind: str = "allocated_mib") -> str:
    """Adaptive beside reference."""
    ours, theirs = (result["by"][name].get(kind) for name in (ADAPTIVE, REFERENCE))
    return f"{ours / theirs:.3f}" if ours and theirs else ""


def setting_words(result: Result) -> str:
    return f"{PRECISIONS[result['precision']]}, {MODES[result['mode']]}, batch {result['batch']}"


Columns = dict[str, Callable[[Result], str]]
SPEED: Columns = {
    "reference": lambda result: speed_cell(result["by"][REFERENCE]),
    "adaptive": lambda result: ratio_cell(result["by"][ADAPTIVE]),
}
SPEED_AND_MEMORY: Columns = {**SPEED, "memory": memory_ratio}
LATENCY: Columns = {
    "reference": lambda result: time_cell(result["by"][REFERENCE]),
    "adaptive": lambda result: ratio_cell(result["by"][ADAPTIVE], inverse=True),
}


def by_setting(settings: list[Result], columns: Columns, note: str) -> str:
    """One line for each setting and model, those that are missing included."""
    found = _for_each_model(settings)
    rows = []
    for model, setting, result in found:
        cells = [show(result) for show in columns.values()] if result else [NOT_YET]
        rows.append([MODELS[model], setting_words(setting), *cells])
    return _noted(["model", "setting", *columns], rows, (result for *_, result in found), f"{{}} {note}")


MEMORY = f"{RATIOS} Memory is the allocated peak, adaptive / reference."
inference = partial(by_setting, [COMPILED, EAGER, TF32], SPEED_AND_MEMORY, MEMORY)
training = partial(by_setting, [TRAINING], SPEED_AND_MEMORY, MEMORY)
cpu = partial(by_setting, [CPU], SPEED, RATIOS)
TIMES = f"Ratios are times against the reference, {MEDIANS}; below 1 is faster."
latency = partial(by_setting, [_setting("inference", "bf16", "graph", 1)], LATENCY, TIMES)


def memory() -> str:
    paper, rows = load("paper_speed")["memory"], []
    found = _for_each_model(_setting(work, "bf16", "eager", 64) for work in ("training", "inference"))
    for model, setting, result in found:
        default, adaptive = (paper[model][setting["work"]][name] for name in ("default", "adaptive"))
        printed = [f"{adaptive[kind] / default[kind]:.3f}" for kind in ("allocated", "reserved")]
        ours = [NOT_YET, "", ""]
        if result:
            ours = [f"{result['by'][REFERENCE]['allocated_mib']:,.0f} MiB"]
            ours += [memory_ratio(result), memory_ratio(result, "reserved_mib")]
        rows.append([MODELS[model], setting["work"], *ours, *printed])
    head = ["model", "work", "reference", "allocated", "reserved", "the paper's allocated", "the paper's reserved"]
    note = "bf16, eager, batch 64. The reference's allocated peak, and ratios of peaks, adaptive / reference. {}"
    return _noted(head, rows, (result for *_, result in found), note)


def modules(device: str = "cuda") -> str:
    """One table for each mode."""
    paper, parts = load("paper_speed")["modules"], []
    head = ["module", "ordinary", "ours, fixed", "ours, adaptive", "delta", "of one stage-1 block", "the paper's delta"]
    for result in reversed(measured("modules_speed_*")):
        if result["device"] == device:
            rows = sorted(result["rows"], key=lambda row: "error" in row)
            size = f"{result['batch']} x 3 x {result['size']} x {result['size']}"
            note = f"{PRECISIONS[result['precision']]}, {MODES[result['mode']]}, {size}. {{}}"
            parts.append(_noted(head, [_module_row(row, paper) for row in rows], [result], note))
    return "\n\n".join(parts) or f"{NOT_YET}."


def _module_row(row: Result, paper: Result) -> list[str]:
    if "error" in row:
        return [row["name"], row["error"]]
    printed = paper.get(row["name"].removeprefix("MViTv2: ").removesuffix(", stage 1")) or {}
    theirs = f"+{printed['adaptive'] - (printed['default'] or 0):.2f} ms" if printed else ""
    formats = {"ordinary_ms": ".3f", "fixed_ms": ".3f", "adaptive_ms": ".3f", "delta_ms": "+.3f"}
    times = [f"{row[key]:{digits}} ms" if key in row else "" for key, digits in formats.items()]
    return [row["name"], *times, f"{row['adaptive_of_block']:.2f}" if "adaptive_of_block" in row else "", theirs]


def resolution() -> str:
    """The same number of pixels in larger images, after the model's own size in the same setting."""
    results = [result for result in measured() if result["work"] == "inference" and result["device"] == "cuda"]
    rows, used = [], []
    for family in FAMILIES.values():
        larger = [result for result in results if result["model"] == family.name and result["size"] != family.size]
        for precision, mode in dict.fromkeys((result["precision"], result["mode"]) for result in larger):
            alike = {"model": family.name, "precision": precision, "mode": mode}
            own = find(results, size=family.size, batch=128, **alike)
            sizes = sorted({result["size"] for result in larger})
            for result in filter(None, [own, *(find(larger, size=size, **alike) for size in sizes)]):
                used.append(result)
                setting = f"{result['size']} x {result['size']}, {setting_words(result)}"
                rows.append([MODELS[family.name], setting, *(show(result) for show in SPEED.values())])
    return _noted(["model", "images", *SPEED], rows, used, f"{{}} {RATIOS}")


def summary() -> str:
    """The adaptive network's size, its throughput beside the reference's, and the paper's beside its own default."""
    paper, rows = load("paper_speed")["throughput"], {}
    for model, title in MODELS.items():
        with torch.device("meta"):
            parameters = sum(weight.numel() for weight in create_model(f"a_{model}").parameters())
        rows[model] = [title, f"{parameters / 1e6:.1f} M"]
    found = _for_each_model(SUMMARY.values())
    for model, _, result in found:
        row = result["by"][ADAPTIVE] if result else {}
        rows[model].append("failed" if "error" in row else f"{row['ratio']:.2f}" if row.get("ratio") else NOT_YET)
    for model, row in rows.items():
        row.append(f"{paper[model]['adaptive'] / paper[model]['default']:.2f}")
    note = "{} Images per second; batch 128, training 256, CPU 8; 1 is parity."
    head = ["adaptive / reference", "# Params", *SUMMARY, "the paper's"]
    return _noted(head, list(rows.values()), (result for *_, result in found), note)


def trainer() -> str:
    """Training on real data beside the bare network."""
    rows = []
    for recorded in [load(f"training_speed_{name}") for name in ("swin_tiny", "a_swin_tiny")]:
        result = recorded["result"]
        for row in result["rows"]:
            tests = [f"{100 * entry['model_top1']:.1f}" for entry in row["log"] if entry["kind"] == "test"]
            circular = row["evaluation"]["circular"]
            rates = [f"{100 * circular[key]['rate']:.2f} %" for key in ("consistency", "bit_exact")]
            bare, speed = row["bare_median"], result["batch"] / seconds_per_step(row["log"])
            speeds = [f"{bare:,.0f} img/s", f"{speed:,.0f} img/s", f"{100 * speed / bare:.0f} %"]
            rows.append([f"`{row['model']}`", *speeds, f"{', '.join(tests)} %", *rates])
    head = ["model", "bare", "training", "kept", "Top-1 after each epoch"]
    head += ["C-Cons. of the final weights", "bit-identical"]
    note = (
        f"{result['precision']}, compiled, batch {result['batch']}, on {machine(recorded)}; consistency in float32 on "
        "10,000 test images. Training's speed is the slope of time over steps in its log, since the clock of these "
        "runs did not wait for the last step of an interval. The logs are in `results/training_speed_*.json`."
    )
    return table(head, rows, note)


def graphed_steps() -> str:
    """A training step as one CUDA graph beside the eager one."""
    recorded, rows = load("graph_speed"), []
    times = {(row["model"], row["batch"], row["compiled"], row["graph"]): row for row in recorded["result"]["rows"]}
    for (model, batch, compiled, graph), row in times.items():
        if graph:
            before, now = times[model, batch, compiled, False]["milliseconds"], row["milliseconds"]
            how = f"`{model}`, batch {batch}{', compiled' * compiled}"
            rows.append([how, f"{before:.1f} ms", f"{now:.1f} ms", f"{before / now:.1f}"])
    note = f"bf16, 32 pixels, on {machine(recorded)}."
    return table(["network", "a step", "as one graph", "times as fast"], rows, note)


def seconds_per_step(log: list[Result]) -> float:
    """Slope of time over steps without the first interval, which compiles: a constant error per interval drops out."""
    entries = [entry for entry in log if entry["kind"] == "train"]
    steps = [after["step"] - before["step"] for before, after in pairwise(entries)]
    return linear_regression(steps, [entry["seconds"] for entry in entries[1:]]).slope


def audit() -> str:
    rows = []
    for recorded in load_all("audit_overhead_*"):
        result = recorded["result"]
        where = f"{recorded['machine']['gpu'] or recorded['machine']['processor']}, {result['precision']}"
        for row in result["rows"]:
            rounds = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"])
            cells = [f"{row[key]:.1f} s" for key in ("bare_seconds", "audit_seconds")]
            cells += [f"{row['ratio']:.2f} ({rounds})", f"{row['extra_memory_mib']:.0f} MiB"]
            rows.append([where, row["model"], f"{result['images']}, {result['batch']}", *cells])
    head = ["where", "model", "images, batch", "forward passes", "audit", "ratio (each round)"]
    return table([*head, "memory beyond the passes"], rows)


def adapted() -> str:
    """Networks of other libraries, adapted, beside themselves."""
    results = measured("adapted_speed")
    rows = [
        [result["model"], setting_words(result), *(show(result) for show in SPEED_AND_MEMORY.values())]
        for result in results
    ]
    return _noted(["model", "setting", *SPEED_AND_MEMORY], rows, results, f"{{}} {MEMORY}")


def segmentation() -> str:
    """The decoder alone; what was measured first stands first."""
    results = measured("segmentation_speed_*")
    columns = {**LATENCY, "memory": memory_ratio}
    rows = []
    for result in results:
        size = f"{result['size']} x {result['size']}"
        work = f"{result['work']}, {setting_words(result)}, {size}"
        rows.append([MODELS[result["model"]], work, *(show(result) for show in columns.values())])
    return _noted(["decoder on", "work", *columns], rows, results, f"{{}} 150 classes. {TIMES}")
