"""Tables of time and memory, from whichever of `results/model_speed_*.json` and `modules_speed_*.json` are there.

A setting that was measured more than once is shown as it was measured last; one that was not says so.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from record import RESULTS, machine

MODELS = {
    "swin_tiny_patch4_window7_224": ("Swin-T", 224),
    "swinv2_tiny_window8_256": ("SwinV2-T", 256),
    "cvt_13": ("CvT-13", 224),
    "mvitv2_tiny": ("MViTv2-T", 224),
}
NOT_YET = "not measured yet"
REFERENCE, FIXED, ADAPTIVE = "reference", "ours, fixed", "ours, adaptive"
MODES = {
    "eager": "eager",
    "compiled": "compiled",
    "graph": "CUDA graph",
    "compiled_graph": "compiled, CUDA graph",
}
PRECISIONS = {"bf16": "bf16", "bf16_weights": "bf16 weights", "tf32": "TF32", "float32": "float32"}

Result = dict[str, Any]


def measured(pattern: str = "model_speed_*.json") -> list[Result]:
    """All results, the latest first."""
    found = []
    for path in sorted(RESULTS.glob(pattern)):
        recorded = json.loads(path.read_text())
        found += [(recorded["date"], _completed(result, recorded)) for result in recorded["result"]["results"]]
    return [result for _, result in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _completed(result: Result, recorded: dict[str, Any]) -> Result:
    """With what results of earlier versions did not say, and where it was measured."""
    mode = result.get("mode") or ("compiled" if result["compiled"] else "eager")
    device = result.get("device") or ("cuda" if recorded["machine"]["gpu"] else "cpu")
    return {
        "size": MODELS.get(result.get("model", ""), ("", 0))[1],
        **result,
        "mode": mode,
        "device": device,
        "precision": result["precision"].lower(),
        "where": machine(recorded, device),
        "contestants": {row["name"]: row for row in result["rows"]},
    }


def find(results: Iterable[Result], **wanted: Any) -> Result | None:
    """The latest that was measured in this setting."""
    for result in results:
        complete = REFERENCE in result["contestants"] and ADAPTIVE in result["contestants"]
        if complete and all(result[key] == value for key, value in wanted.items()):
            return result
    return None


def ratio_cell(row: dict[str, Any] | None, inverse: bool = False) -> str:
    """Median and quartiles; of times instead of throughputs where inverse."""
    if row is None:
        return ""
    if "error" in row:
        return f"failed: {row['error'][:60]}"
    if row.get("ratio") is None:
        return NOT_YET
    numbers = [row["ratio"], *row["quartiles"]]
    if inverse:
        numbers = [1 / number for number in (numbers[0], numbers[2], numbers[1])]
    return f"{numbers[0]:.3f} ({numbers[1]:.3f} to {numbers[2]:.3f})"


def memory_ratio(result: Result | None, kind: str = "allocated_mib") -> str:
    """Adaptive beside reference."""
    ours, theirs = (_memory(result, name, kind) for name in (ADAPTIVE, REFERENCE))
    return f"{ours / theirs:.3f}" if ours and theirs else ""


def _memory(result: Result | None, name: str, kind: str) -> float | None:
    row = result["contestants"].get(name, {}) if result else {}
    return row.get(kind) or (row.get("memory_mib") if kind == "allocated_mib" else None)


def speed_cell(row: dict[str, Any] | None) -> str:
    if row is None or "error" in row:
        return ratio_cell(row)
    return f"{row['images_per_second']:,.0f} img/s" if row.get("images_per_second") else NOT_YET


def setting_words(result: Result) -> str:
    return f"{PRECISIONS[result['precision']]}, {MODES[result['mode']]}, batch {result['batch']}"


def table(head: str, rows: list[list[str]], notes: Iterable[str]) -> str:
    columns = head.count("|") - 1
    lines = [head, "|" + "---|" * columns]
    lines += ["| " + " | ".join([*row, *[""] * (columns - len(row))]) + " |" for row in rows]
    return "\n".join([*lines, "", " ".join(notes)]).rstrip()


def places(results: Iterable[Result | None]) -> str:
    """Where results come from."""
    return "On " + "; ".join(dict.fromkeys(result["where"] for result in results if result)) + "."


def _settings_table(
    head: str,
    wanted: list[dict[str, Any]],
    show: Callable[[Result], list[str]],
    command: str,
    notes: Iterable[str],
) -> str:
    """One line for each setting and model, those that are missing included; nothing but the command if all are."""
    results = measured()
    rows, used = [], []
    for setting in wanted:
        for model, (title, own) in MODELS.items():
            found = find(results, model=model, size=own, **setting)
            used.append(found)
            rows.append([title, *(show(found) if found else [setting_words({**setting}), NOT_YET])])
    if not any(used):
        return f"Not measured yet: `{command}`."
    return table(head, rows, [places(used), *notes])


RATIOS = "Ratios are throughputs against the reference, medians of interleaved rounds with quartiles; 1 is parity."


def _three(result: Result) -> list[str]:
    rows = result["contestants"]
    return [
        setting_words(result),
        speed_cell(rows.get(REFERENCE)),
        ratio_cell(rows.get(FIXED)),
        ratio_cell(rows.get(ADAPTIVE)),
        memory_ratio(result),
    ]


def _setting(work: str, precision: str, mode: str, batch: int, device: str = "cuda") -> dict[str, Any]:
    return {"work": work, "precision": precision, "mode": mode, "batch": batch, "device": device}


def _also_measured(required: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """The settings asked for, and any other of the same kind that was measured."""
    other = [
        _setting(result["work"], result["precision"], result["mode"], result["batch"], result["device"])
        for result in measured()
        if all(result[key] in values for key, values in wanted.items())
        and result["size"] == MODELS[result["model"]][1]
        and all("seconds" in row for row in result["rows"] if "error" not in row)
    ]
    return required + [setting for index, setting in enumerate(other) if setting not in required + other[:index]]


def inference() -> str:
    required = [
        _setting("inference", *pair, 128) for pair in (("bf16", "compiled"), ("bf16", "eager"), ("tf32", "eager"))
    ]
    return _settings_table(
        "| model | setting | reference | ours, fixed | ours, adaptive | memory |",
        _also_measured(required, work=["inference"], mode=["compiled", "eager"], batch=[128], device=["cuda"]),
        _three,
        "python benchmarks/model_speed.py --mode compiled",
        [RATIOS, "Memory is the allocated peak, adaptive / reference."],
    )


def latency() -> str:
    def show(result: Result) -> list[str]:
        rows = result["contestants"]
        base = rows.get(REFERENCE, {})
        time = f"{base['milliseconds']:.2f} ms" if base.get("milliseconds") else ratio_cell(base)
        return [setting_words(result), time, *(ratio_cell(rows.get(name), inverse=True) for name in (FIXED, ADAPTIVE))]

    return _settings_table(
        "| model | setting | reference | ours, fixed | ours, adaptive |",
        [_setting("inference", "bf16", "graph", 1)],
        show,
        "python benchmarks/model_speed.py --batch 1 --mode graph --name model_speed_latency",
        ["Ratios are times against the reference, medians of interleaved rounds with quartiles; below 1 is faster."],
    )


def training() -> str:
    required = [_setting("training", "bf16", "compiled", 256)]
    return _settings_table(
        "| model | setting | reference | ours, fixed | ours, adaptive | memory |",
        _also_measured(required, work=["training"], mode=["compiled", "eager"], batch=[128, 256], device=["cuda"]),
        _three,
        "python benchmarks/model_speed.py --work training --batch 256 --mode compiled --name model_speed_training",
        [RATIOS, "Memory is the allocated peak, adaptive / reference."],
    )


def memory() -> str:
    results, paper = measured(), _paper()["memory"]
    rows, used = [], []
    for work in ("training", "inference"):
        for model, (title, own) in MODELS.items():
            found = find(results, model=model, size=own, **_setting(work, "bf16", "eager", 64))
            used.append(found)
            theirs = _memory(found, REFERENCE, "allocated_mib")
            default, adaptive = (paper[model][work][name] for name in ("default", "adaptive"))
            printed = [f"{adaptive[kind] / default[kind]:.3f}" for kind in ("allocated", "reserved")]
            ours = [
                f"{theirs:,.0f} MiB" if theirs else NOT_YET,
                memory_ratio(found),
                memory_ratio(found, "reserved_mib"),
            ]
            rows.append([title, work, *ours, *printed])
    command = (
        "python benchmarks/model_speed.py --batch 64 --work inference training --rounds 0 --name model_speed_memory"
    )
    if not any(used):
        return f"Not measured yet: `{command}`."
    head = "| model | work | reference | allocated | reserved | the paper's allocated | the paper's reserved |"
    notes = ["bf16, eager, batch 64. The reference's allocated peak, and ratios of peaks, adaptive / reference."]
    return table(head, rows, [*notes, places(used)])


def modules(device: str, command: str) -> str:
    """One table for each mode."""
    paper, parts = _paper()["modules"], []
    for result in reversed(measured("modules_speed_*.json")):
        if result["device"] != device:
            continue
        rows = [[row["name"], row["error"]] for row in result["rows"] if "error" in row]
        rows = [_module_row(row, paper) for row in result["rows"] if "error" not in row] + rows
        head = "| module | ordinary | ours, fixed | ours, adaptive | delta | of one stage-1 block | the paper's delta |"
        size = f"{result['batch']} x 3 x {result['size']} x {result['size']}"
        parts.append(
            table(
                head, rows, [f"{PRECISIONS[result['precision']]}, {MODES[result['mode']]}, {size}.", places([result])]
            )
        )
    return "\n\n".join(parts) or f"Not measured yet: `{command}`."


def _module_row(row: dict[str, Any], paper: dict[str, Any]) -> list[str]:
    name = row["name"].removeprefix("MViTv2: ").removesuffix(", stage 1")
    printed = paper.get(name) or {}
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
        kinds = dict.fromkeys((result["precision"], result["mode"]) for result in larger)
        for precision, mode in kinds:
            alike = {"precision": precision, "mode": mode}
            base = [find(results, model=model, size=own, batch=batch, **alike) for batch in (128, 64, 32)]
            sizes = sorted({result["size"] for result in larger})
            shown = [*[result for result in base if result][:1], *(find(larger, size=size, **alike) for size in sizes)]
            for found in filter(None, shown):
                used.append(found)
                contestants = found["contestants"]
                pixels = f"{found['size']} x {found['size']}"
                cells = [
                    speed_cell(contestants.get(REFERENCE)),
                    ratio_cell(contestants.get(ADAPTIVE)),
                    _against_fixed(found),
                ]
                rows.append([title, f"{pixels}, {setting_words(found)}", *cells])
    options = "--models swin --mode eager graph --size 224 448 896 --same-area --name model_speed_resolution"
    if not used:
        return f"Not measured yet: `python benchmarks/model_speed.py {options}`."
    return table(
        "| model | images | reference | adaptive / reference | adaptive / fixed |", rows, [places(used), RATIOS]
    )


def _against_fixed(result: Result) -> str:
    ours, fixed = (result["contestants"].get(name, {}).get("seconds") for name in (ADAPTIVE, FIXED))
    if not ours or not fixed:
        return ""
    ratios = sorted(b / a for a, b in zip(ours, fixed, strict=True))
    return f"{ratios[len(ratios) // 2]:.3f}"


def cpu() -> str:
    return _settings_table(
        "| model | setting | reference | ours, fixed | ours, adaptive |",
        [_setting("inference", "float32", "eager", 8, "cpu")],
        lambda result: _three(result)[:4],
        "python benchmarks/model_speed.py --device cpu --name model_speed_cpu",
        [RATIOS],
    )


SUMMARY = (
    ("bf16, compiled", _setting("inference", "bf16", "compiled", 128)),
    ("bf16, eager", _setting("inference", "bf16", "eager", 128)),
    ("TF32, eager", _setting("inference", "tf32", "eager", 128)),
    ("training, bf16, compiled", _setting("training", "bf16", "compiled", 256)),
    ("CPU, float32", _setting("inference", "float32", "eager", 8, "cpu")),
)


def summary() -> str:
    """The adaptive network's throughput beside the reference's, and the paper's beside its own default."""
    results, paper = measured(), _paper()["throughput"]
    rows, used = [], []
    for model, (title, own) in MODELS.items():
        cells = []
        for _, setting in SUMMARY:
            found = find(results, model=model, size=own, **setting)
            used.append(found)
            row = found["contestants"][ADAPTIVE] if found else {}
            cells.append("failed" if "error" in row else f"{row['ratio']:.2f}" if row.get("ratio") else NOT_YET)
        rows.append([title, *cells, f"{paper[model]['adaptive'] / paper[model]['default']:.2f}"])
    head = "| adaptive / reference | " + " | ".join(title for title, _ in SUMMARY) + " | the paper's |"
    notes = [places(used)] if any(used) else []
    return table(head, rows, [*notes, "Images per second; batch 128, training 256, CPU 8; 1 is parity."])


def _paper() -> dict[str, Any]:
    return json.loads((RESULTS / "paper_speed.json").read_text())


TABLES = {
    "speed_summary": summary,
    "speed_inference": inference,
    "speed_latency": latency,
    "speed_training": training,
    "speed_memory": memory,
    "speed_modules": lambda: modules("cuda", "python benchmarks/modules_speed.py --mode eager graph"),
    "speed_modules_cpu": lambda: modules("cpu", "python benchmarks/modules_speed.py --device cpu"),
    "speed_resolution": resolution,
    "speed_cpu": cpu,
}
