"""Tables of time and memory, from whichever of ``results/model_speed_*.json`` and the like are there.

A setting that was measured more than once is shown as it was measured last; one that was not says so.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import linear_regression, median
from typing import Any

from benchmarks.common.record import load, load_all, machine, table

MODELS = {
    "swin_tiny_patch4_window7_224": ("Swin-T", 224),
    "swinv2_tiny_window8_256": ("SwinV2-T", 256),
    "cvt_13": ("CvT-13", 224),
    "mvitv2_tiny": ("MViTv2-T", 224),
}
NOT_YET, NOTHING = "not measured yet", "Not measured yet."
REFERENCE, FIXED, ADAPTIVE = "reference", "ours, fixed", "ours, adaptive"
MODES = {"eager": "eager", "compiled": "compiled", "graph": "CUDA graph", "compiled_graph": "compiled, CUDA graph"}
PRECISIONS = {"bf16": "bf16", "bf16_weights": "bf16 weights", "tf32": "TF32", "float32": "float32"}
HEAD = ["model", "setting", "reference", "ours, fixed", "ours, adaptive", "memory"]
MEDIANS = "medians of interleaved rounds with quartiles"
RATIOS = f"Ratios are throughputs against the reference, {MEDIANS}; 1 is parity."

Result = dict[str, Any]


def _setting(work: str, precision: str, mode: str, batch: int, device: str = "cuda") -> Result:
    return {"work": work, "precision": precision, "mode": mode, "batch": batch, "device": device}


COMPILED, EAGER, TF32, TRAINING, CPU = SUMMARY = (
    _setting("inference", "bf16", "compiled", 128),
    _setting("inference", "bf16", "eager", 128),
    _setting("inference", "tf32", "eager", 128),
    _setting("training", "bf16", "compiled", 256),
    _setting("inference", "float32", "eager", 8, "cpu"),
)
TITLES = ("bf16, compiled", "bf16, eager", "TF32, eager", "training, bf16, compiled", "CPU, float32")


def measured(pattern: str = "model_speed_*") -> list[Result]:
    """All results, the latest first, with where they were measured and their rows by name."""
    recorded = sorted(load_all(pattern), key=lambda each: each["date"], reverse=True)
    return [
        {**result, "where": machine(each, result["device"]), "by": {row["name"]: row for row in result["rows"]}}
        for each in recorded
        for result in each["result"]["results"]
    ]


def find(results: Iterable[Result], **wanted: Any) -> Result | None:
    """The latest that was measured in this setting."""
    complete = (result for result in results if {REFERENCE, ADAPTIVE} <= result["by"].keys())
    return next((each for each in complete if all(each[key] == value for key, value in wanted.items())), None)


def _for_each_model(settings: Iterable[Result]) -> list[tuple[str, str, Result, Result | None]]:
    """Model, title, setting, and what was measured in it."""
    results = measured()
    return [
        (model, title, setting, find(results, model=model, size=size, **setting))
        for setting in settings
        for model, (title, size) in MODELS.items()
    ]


def _noted(head: list[str], rows: list[list[str]], used: Iterable[Result | None], note: str) -> str:
    """A table and where its results come from; no table if there are none."""
    places = "; ".join(dict.fromkeys(result["where"] for result in used if result))
    return table(head, rows, note.format(f"On {places}.")) if places else NOTHING


def ratio_cell(row: Result | None, inverse: bool = False) -> str:
    """Median and quartiles; of times instead of throughputs where inverse."""
    if row is None:
        return ""
    if "error" in row:
        return f"failed: {row['error'][:60]}"
    if row.get("ratio") is None:
        return NOT_YET
    middle, low, high = row["ratio"], *row["quartiles"]
    if inverse:
        middle, low, high = 1 / middle, 1 / high, 1 / low
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def speed_cell(row: Result | None) -> str:
    if row is None or "error" in row:
        return ratio_cell(row)
    return f"{row['images_per_second']:,.0f} img/s" if row.get("images_per_second") else NOT_YET


def memory_ratio(result: Result | None, kind: str = "allocated_mib") -> str:
    """Adaptive beside reference."""
    ours, theirs = (result["by"].get(name, {}).get(kind) if result else None for name in (ADAPTIVE, REFERENCE))
    return f"{ours / theirs:.3f}" if ours and theirs else ""


def setting_words(result: Result) -> str:
    return f"{PRECISIONS[result['precision']]}, {MODES[result['mode']]}, batch {result['batch']}"


def _three(result: Result) -> list[str]:
    ratios = (ratio_cell(result["by"].get(name)) for name in (FIXED, ADAPTIVE))
    return [speed_cell(result["by"].get(REFERENCE)), *ratios, memory_ratio(result)]


def _settings_table(settings: list[Result], note: str, show: Callable[[Result], list[str]] = _three) -> str:
    """One line for each setting and model, those that are missing included."""
    found = _for_each_model(settings)
    rows = [[title, setting_words(each), *(show(result) if result else [NOT_YET])] for _, title, each, result in found]
    width = max(map(len, rows))
    return _noted(HEAD[:width], rows, (result for *_, result in found), f"{{}} {note}")


def _also_measured(required: list[Result], batches: tuple[int, ...]) -> str:
    """The settings asked for, and any other of the same kind that was measured."""
    found = list(required)
    for result in measured():
        setting = {key: result[key] for key in required[0]}
        alike = (setting["work"], setting["device"]) == (required[0]["work"], "cuda")
        usual = setting["mode"] in ("compiled", "eager") and setting["batch"] in batches
        timed = all("seconds" in row for row in result["rows"] if "error" not in row)
        if setting not in found and alike and usual and timed and result["size"] == MODELS[result["model"]][1]:
            found.append(setting)
    return _settings_table(found, f"{RATIOS} Memory is the allocated peak, adaptive / reference.")


def inference() -> str:
    return _also_measured([COMPILED, EAGER, TF32], (128,))


def training() -> str:
    return _also_measured([TRAINING], (128, 256))


def latency() -> str:
    def show(result: Result) -> list[str]:
        base = result["by"][REFERENCE]
        time = f"{base['milliseconds']:.2f} ms" if base.get("milliseconds") else ratio_cell(base)
        return [time, *(ratio_cell(result["by"].get(name), inverse=True) for name in (FIXED, ADAPTIVE))]

    note = f"Ratios are times against the reference, {MEDIANS}; below 1 is faster."
    return _settings_table([_setting("inference", "bf16", "graph", 1)], note, show)


def cpu() -> str:
    return _settings_table([CPU], RATIOS, lambda result: _three(result)[:3])


def memory() -> str:
    paper, rows = load("paper_speed")["memory"], []
    found = _for_each_model(_setting(work, "bf16", "eager", 64) for work in ("training", "inference"))
    for model, title, setting, result in found:
        theirs = result["by"][REFERENCE].get("allocated_mib") if result else None
        default, adaptive = (paper[model][setting["work"]][name] for name in ("default", "adaptive"))
        printed = (f"{adaptive[kind] / default[kind]:.3f}" for kind in ("allocated", "reserved"))
        ours = (memory_ratio(result), memory_ratio(result, "reserved_mib"))
        rows.append([title, setting["work"], f"{theirs:,.0f} MiB" if theirs else NOT_YET, *ours, *printed])
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
    return "\n\n".join(parts) or NOTHING


def modules_cpu() -> str:
    return modules("cpu")


def _module_row(row: Result, paper: Result) -> list[str]:
    if "error" in row:
        return [row["name"], row["error"]]
    printed = paper.get(row["name"].removeprefix("MViTv2: ").removesuffix(", stage 1")) or {}
    theirs = f"+{printed['adaptive'] - (printed['default'] or 0):.2f} ms" if printed else ""
    formats = {"ordinary_ms": ".3f", "fixed_ms": ".3f", "adaptive_ms": ".3f", "delta_ms": "+.3f"}
    times = [f"{row[key]:{digits}} ms" if key in row else "" for key, digits in formats.items()]
    return [row["name"], *times, f"{row['adaptive_of_block']:.2f}" if "adaptive_of_block" in row else "", theirs]


def resolution() -> str:
    results = [result for result in measured() if result["work"] == "inference" and result["device"] == "cuda"]
    rows, used = [], []
    for model, (title, own) in MODELS.items():
        larger = [result for result in results if result["model"] == model and result["size"] != own]
        sizes = sorted({result["size"] for result in larger})
        for precision, mode in dict.fromkeys((result["precision"], result["mode"]) for result in larger):
            alike = {"precision": precision, "mode": mode}
            base = [find(results, model=model, size=own, batch=batch, **alike) for batch in (128, 64, 32)]
            shown = [*list(filter(None, base))[:1], *(find(larger, size=size, **alike) for size in sizes)]
            for found in filter(None, shown):
                used.append(found)
                setting = f"{found['size']} x {found['size']}, {setting_words(found)}"
                cells = [speed_cell(found["by"].get(REFERENCE)), ratio_cell(found["by"].get(ADAPTIVE))]
                ours, fixed = (found["by"].get(name, {}).get("seconds") for name in (ADAPTIVE, FIXED))
                ratios = [b / a for a, b in zip(ours, fixed, strict=True)] if ours and fixed else []
                rows.append([title, setting, *cells, f"{median(ratios):.3f}" if ratios else ""])
    head = ["model", "images", "reference", "adaptive / reference", "adaptive / fixed"]
    return _noted(head, rows, used, f"{{}} {RATIOS}")


def summary() -> str:
    """The adaptive network's throughput beside the reference's, and the paper's beside its own default."""
    paper, rows = load("paper_speed")["throughput"], {model: [title] for model, (title, _) in MODELS.items()}
    found = _for_each_model(SUMMARY)
    for model, _, _, result in found:
        row = result["by"][ADAPTIVE] if result else {}
        rows[model].append("failed" if "error" in row else f"{row['ratio']:.2f}" if row.get("ratio") else NOT_YET)
    for model, row in rows.items():
        row.append(f"{paper[model]['adaptive'] / paper[model]['default']:.2f}")
    note = "{} Images per second; batch 128, training 256, CPU 8; 1 is parity."
    head = ["adaptive / reference", *TITLES, "the paper's"]
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


def segmentation() -> str:
    rows, recorded = [], load("segmentation_speed_cuda")
    for row in recorded["result"]["rows"]:
        mode = "compiled" if row["compiled"] else "eager"
        work = f"{row['work']}, bf16, {mode}, {row['batch']} x {row['size']} x {row['size']}, {row['classes']} classes"
        times = [f"{row['milliseconds'][kind]:.1f} ms" for kind in ("ordinary", "equivariant")]
        ratio = ratio_cell({"ratio": row["time_ratio"], "quartiles": row["quartiles"]})
        rows.append([row["backbone"], work, *times, ratio, f"{row['memory_ratio']:.3f}"])
    head = ["decoder on", "work", "ordinary", "equivariant", "time", "memory"]
    return table(head, rows, f"`{recorded['command']}` on {machine(recorded)}; medians and quartiles.")
