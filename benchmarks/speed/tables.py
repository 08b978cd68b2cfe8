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
NOT_YET = "not measured yet"
REFERENCE, FIXED, ADAPTIVE = "reference", "ours, fixed", "ours, adaptive"
MODES = {"eager": "eager", "compiled": "compiled", "graph": "CUDA graph", "compiled_graph": "compiled, CUDA graph"}
PRECISIONS = {"bf16": "bf16", "bf16_weights": "bf16 weights", "tf32": "TF32", "float32": "float32"}
RATIOS = "Ratios are throughputs against the reference, medians of interleaved rounds with quartiles; 1 is parity."

Result = dict[str, Any]


def measured(pattern: str = "model_speed_*") -> list[Result]:
    """All results, the latest first."""
    found = [
        (recorded["date"], _completed(result, recorded))
        for recorded in load_all(pattern)
        for result in recorded["result"]["results"]
    ]
    return [result for _, result in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _completed(result: Result, recorded: Result) -> Result:
    """With what results of earlier versions did not say, and where it was measured."""
    device = result.get("device") or ("cuda" if recorded["machine"]["gpu"] else "cpu")
    return {
        "size": MODELS.get(result.get("model", ""), ("", 0))[1],
        **result,
        "mode": result.get("mode") or ("compiled" if result["compiled"] else "eager"),
        "device": device,
        "precision": result["precision"].lower(),
        "where": machine(recorded, device),
        "contestants": {row["name"]: row for row in result["rows"]},
    }


def find(results: Iterable[Result], **wanted: Any) -> Result | None:
    """The latest that was measured in this setting."""
    for result in results:
        complete = {REFERENCE, ADAPTIVE} <= result["contestants"].keys()
        if complete and all(result[key] == value for key, value in wanted.items()):
            return result
    return None


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


def memory_ratio(result: Result | None, kind: str = "allocated_mib") -> str:
    """Adaptive beside reference."""
    ours, theirs = (_memory(result, name, kind) for name in (ADAPTIVE, REFERENCE))
    return f"{ours / theirs:.3f}" if ours and theirs else ""


def _memory(result: Result | None, name: str, kind: str) -> float | None:
    row = result["contestants"].get(name, {}) if result else {}
    return row.get(kind) or (row.get("memory_mib") if kind == "allocated_mib" else None)


def speed_cell(row: Result | None) -> str:
    if row is None or "error" in row:
        return ratio_cell(row)
    return f"{row['images_per_second']:,.0f} img/s" if row.get("images_per_second") else NOT_YET


def setting_words(result: Result) -> str:
    return f"{PRECISIONS[result['precision']]}, {MODES[result['mode']]}, batch {result['batch']}"


def places(results: Iterable[Result | None]) -> str:
    """Where results come from."""
    return "On " + "; ".join(dict.fromkeys(result["where"] for result in results if result)) + "."


def _settings_table(head: list[str], wanted: list[Result], show: Callable[[Result], list[str]], note: str) -> str:
    """One line for each setting and model, those that are missing included; no table if all are."""
    results = measured()
    rows, used = [], []
    for setting in wanted:
        for model, (title, own) in MODELS.items():
            found = find(results, model=model, size=own, **setting)
            used.append(found)
            rows.append([title, *(show(found) if found else [setting_words(setting), NOT_YET])])
    return table(head, rows, f"{places(used)} {note}") if any(used) else "Not measured yet."


def _three(result: Result) -> list[str]:
    rows = result["contestants"]
    ratios = (ratio_cell(rows.get(name)) for name in (FIXED, ADAPTIVE))
    return [setting_words(result), speed_cell(rows.get(REFERENCE)), *ratios, memory_ratio(result)]


HEAD = ["model", "setting", "reference", "ours, fixed", "ours, adaptive", "memory"]


def _setting(work: str, precision: str, mode: str, batch: int, device: str = "cuda") -> Result:
    return {"work": work, "precision": precision, "mode": mode, "batch": batch, "device": device}


def _also_measured(required: list[Result], **wanted: Any) -> list[Result]:
    """The settings asked for, and any other of the same kind that was measured."""
    found = list(required)
    for result in measured():
        setting = {key: result[key] for key in required[0]}
        if (
            setting not in found
            and all(result[key] in values for key, values in wanted.items())
            and result["size"] == MODELS[result["model"]][1]
            and all("seconds" in row for row in result["rows"] if "error" not in row)
        ):
            found.append(setting)
    return found


def inference() -> str:
    pairs = (("bf16", "compiled"), ("bf16", "eager"), ("tf32", "eager"))
    required = [_setting("inference", *pair, 128) for pair in pairs]
    wanted = _also_measured(required, work=["inference"], mode=["compiled", "eager"], batch=[128], device=["cuda"])
    return _settings_table(HEAD, wanted, _three, f"{RATIOS} Memory is the allocated peak, adaptive / reference.")


def latency() -> str:
    def show(result: Result) -> list[str]:
        rows = result["contestants"]
        base = rows.get(REFERENCE, {})
        time = f"{base['milliseconds']:.2f} ms" if base.get("milliseconds") else ratio_cell(base)
        return [setting_words(result), time, *(ratio_cell(rows.get(name), inverse=True) for name in (FIXED, ADAPTIVE))]

    note = "Ratios are times against the reference, medians of interleaved rounds with quartiles; below 1 is faster."
    return _settings_table(HEAD[:5], [_setting("inference", "bf16", "graph", 1)], show, note)


def training() -> str:
    required = [_setting("training", "bf16", "compiled", 256)]
    wanted = _also_measured(required, work=["training"], mode=["compiled", "eager"], batch=[128, 256], device=["cuda"])
    return _settings_table(HEAD, wanted, _three, f"{RATIOS} Memory is the allocated peak, adaptive / reference.")


def memory() -> str:
    results, paper = measured(), load("paper_speed")["memory"]
    rows, used = [], []
    for work in ("training", "inference"):
        for model, (title, own) in MODELS.items():
            found = find(results, model=model, size=own, **_setting(work, "bf16", "eager", 64))
            used.append(found)
            theirs = _memory(found, REFERENCE, "allocated_mib")
            default, adaptive = (paper[model][work][name] for name in ("default", "adaptive"))
            printed = (f"{adaptive[kind] / default[kind]:.3f}" for kind in ("allocated", "reserved"))
            ours = (memory_ratio(found), memory_ratio(found, "reserved_mib"))
            rows.append([title, work, f"{theirs:,.0f} MiB" if theirs else NOT_YET, *ours, *printed])
    if not any(used):
        return "Not measured yet."
    head = ["model", "work", "reference", "allocated", "reserved", "the paper's allocated", "the paper's reserved"]
    note = "bf16, eager, batch 64. The reference's allocated peak, and ratios of peaks, adaptive / reference."
    return table(head, rows, f"{note} {places(used)}")


def modules(device: str = "cuda") -> str:
    """One table for each mode."""
    paper, parts = load("paper_speed")["modules"], []
    head = ["module", "ordinary", "ours, fixed", "ours, adaptive", "delta", "of one stage-1 block", "the paper's delta"]
    for result in reversed(measured("modules_speed_*")):
        if result["device"] == device:
            rows = sorted(result["rows"], key=lambda row: "error" in row)
            size = f"{result['batch']} x 3 x {result['size']} x {result['size']}"
            note = f"{PRECISIONS[result['precision']]}, {MODES[result['mode']]}, {size}. {places([result])}"
            parts.append(table(head, [_module_row(row, paper) for row in rows], note))
    return "\n\n".join(parts) or "Not measured yet."


def modules_cpu() -> str:
    return modules("cpu")


def _module_row(row: Result, paper: Result) -> list[str]:
    if "error" in row:
        return [row["name"], row["error"]]
    printed = paper.get(row["name"].removeprefix("MViTv2: ").removesuffix(", stage 1")) or {}
    theirs = f"+{printed['adaptive'] - (printed['default'] or 0):.2f} ms" if printed else ""
    share = f"{row['adaptive_of_block']:.2f}" if "adaptive_of_block" in row else ""
    delta = f"{row['delta_ms']:+.3f} ms" if "delta_ms" in row else ""
    times = [f"{row[key]:.3f} ms" if key in row else "" for key in ("ordinary_ms", "fixed_ms", "adaptive_ms")]
    return [row["name"], *times, delta, share, theirs]


def resolution() -> str:
    results = [result for result in measured() if result["work"] == "inference" and result["device"] == "cuda"]
    rows, used = [], []
    for model, (title, own) in MODELS.items():
        larger = [result for result in results if result["model"] == model and result["size"] != own]
        for precision, mode in dict.fromkeys((result["precision"], result["mode"]) for result in larger):
            alike = {"precision": precision, "mode": mode}
            base = [find(results, model=model, size=own, batch=batch, **alike) for batch in (128, 64, 32)]
            sizes = sorted({result["size"] for result in larger})
            shown = [*list(filter(None, base))[:1], *(find(larger, size=size, **alike) for size in sizes)]
            for found in filter(None, shown):
                used.append(found)
                contestants, pixels = found["contestants"], f"{found['size']} x {found['size']}"
                cells = [speed_cell(contestants.get(REFERENCE)), ratio_cell(contestants.get(ADAPTIVE))]
                rows.append([title, f"{pixels}, {setting_words(found)}", *cells, _against_fixed(found)])
    head = ["model", "images", "reference", "adaptive / reference", "adaptive / fixed"]
    return table(head, rows, f"{places(used)} {RATIOS}") if used else "Not measured yet."


def _against_fixed(result: Result) -> str:
    ours, fixed = (result["contestants"].get(name, {}).get("seconds") for name in (ADAPTIVE, FIXED))
    return f"{median(b / a for a, b in zip(ours, fixed, strict=True)):.3f}" if ours and fixed else ""


def cpu() -> str:
    wanted = [_setting("inference", "float32", "eager", 8, "cpu")]
    return _settings_table(HEAD[:5], wanted, lambda result: _three(result)[:4], RATIOS)


SUMMARY = {
    "bf16, compiled": _setting("inference", "bf16", "compiled", 128),
    "bf16, eager": _setting("inference", "bf16", "eager", 128),
    "TF32, eager": _setting("inference", "tf32", "eager", 128),
    "training, bf16, compiled": _setting("training", "bf16", "compiled", 256),
    "CPU, float32": _setting("inference", "float32", "eager", 8, "cpu"),
}


def summary() -> str:
    """The adaptive network's throughput beside the reference's, and the paper's beside its own default."""
    results, paper = measured(), load("paper_speed")["throughput"]
    rows, used = [], []
    for model, (title, own) in MODELS.items():
        cells = []
        for setting in SUMMARY.values():
            found = find(results, model=model, size=own, **setting)
            used.append(found)
            row = found["contestants"][ADAPTIVE] if found else {}
            cells.append("failed" if "error" in row else f"{row['ratio']:.2f}" if row.get("ratio") else NOT_YET)
        rows.append([title, *cells, f"{paper[model]['adaptive'] / paper[model]['default']:.2f}"])
    where = f"{places(used)} " if any(used) else ""
    note = f"{where}Images per second; batch 128, training 256, CPU 8; 1 is parity."
    return table(["adaptive / reference", *SUMMARY, "the paper's"], rows, note)


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
    head = ["where", "model", "images, batch", "forward passes", "audit", "ratio (each round)"]
    rows = []
    for recorded in load_all("audit_overhead_*"):
        result = recorded["result"]
        where = f"{recorded['machine']['gpu'] or recorded['machine']['processor']}, {result['precision']}"
        for row in result["rows"]:
            rounds = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"])
            cells = [f"{row[key]:.1f} s" for key in ("bare_seconds", "audit_seconds")]
            cells += [f"{row['ratio']:.2f} ({rounds})", f"{row['extra_memory_mib']:.0f} MiB"]
            rows.append([where, row["model"], f"{result['images']}, {result['batch']}", *cells])
    return table([*head, "memory beyond the passes"], rows)


def segmentation() -> str:
    rows, recorded = [], load("segmentation_speed_cuda")
    for row in recorded["result"]["rows"]:
        mode = "compiled" if row["compiled"] else "eager"
        work = f"{row['work']}, bf16, {mode}, {row['batch']} x {row['size']} x {row['size']}, {row['classes']} classes"
        times = [f"{row['milliseconds'][kind]:.1f} ms" for kind in ("ordinary", "equivariant")]
        low, high = row["quartiles"]
        ratio = f"{row['time_ratio']:.3f} ({low:.3f} to {high:.3f})"
        rows.append([row["backbone"], work, *times, ratio, f"{row['memory_ratio']:.3f}"])
    head = ["decoder on", "work", "ordinary", "equivariant", "time", "memory"]
    return table(head, rows, f"`{recorded['command']}` on {machine(recorded)}; medians and quartiles.")
