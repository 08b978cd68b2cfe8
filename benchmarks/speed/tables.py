"""Tables of time and memory, from whichever of ``results/model_speed_*.json`` and the like are there.

Of a setting that was measured more than once the latest result is shown; one that was not measured says so.
"""

from collections.abc import Iterable
from functools import partial
from itertools import pairwise, product
from operator import itemgetter
from statistics import linear_regression
from typing import Any

import torch

from benchmarks.common.contestants import ADAPTIVE, FAMILIES, KEPT, REFERENCE
from benchmarks.common.record import NOT_YET, Table, cell, listing, load, load_all, machine, rows_of, table
from trueshift import create_model

TITLES = {family.name: family.title or family.name for family in (FAMILIES | KEPT).values()}
WORDS = {"graph": "CUDA graph", "tf32": "TF32"}
MEDIANS = "medians of interleaved rounds with quartiles"
RATIOS = f"Ratios are throughputs against the reference, {MEDIANS}; 1 is parity."
MEMORY = f"{RATIOS} Memory is the allocated peak, adaptive / reference."
TIMES = f"Ratios are times against the reference, {MEDIANS}; below 1 is faster."
WINOGRAD_UNTIL = "2026-11-17T02:02"  # d7ad81a

# format strings for what was measured in a setting
SETTING = "{title} | {words}"
SPEED = "{reference[images_per_second]:,.0f} img/s | {ratios[0]:.3f} ({ratios[1]:.3f} to {ratios[2]:.3f})"
LATENCY = "{reference[milliseconds]:.2f} ms | {times[0]:.3f} ({times[1]:.3f} to {times[2]:.3f})"
ALLOCATED = "{allocated_mib:.3f}"
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
    """The latest result of each setting, with where it was measured, both networks, and adaptive / reference."""
    found: dict[Any, Result] = {}
    for recorded in sorted(load_all(pattern), key=lambda each: each["date"], reverse=True):
        for result in recorded["result"]["results"]:
            where, by = machine(recorded, result["device"]), {row["name"]: row for row in result["rows"]}
            if result["device"] == "cpu" and recorded["date"] < WINOGRAD_UNTIL:
                where += f" (at commit {recorded['commit'][:10]}, when merges on a CPU used Winograd's products)"
            theirs, ours = by.get(REFERENCE, {}), by.get(ADAPTIVE, {})
            both = {key: ours[key] / theirs[key] for key in ("allocated_mib", "reserved_mib") if key in ours}
            if "ratio" in ours:
                low, high = ours["quartiles"]
                both |= {"ratios": (ours["ratio"], low, high), "times": (1 / ours["ratio"], 1 / high, 1 / low)}
            if "error" in ours:
                both["error"] = ours["error"]
            setting = tuple(map(result.get, ("model", "size", "batch", "work", "precision", "mode", "device")))
            found.setdefault(setting, {**_named(result), "where": where, "reference": theirs, "adaptive": ours, **both})
    return list(found.values())


def _named(setting: Result) -> Result:
    precision, mode = (WORDS.get(setting[key], setting[key]) for key in ("precision", "mode"))
    words = f"{precision}, {mode}, batch {setting['batch']}"
    return {**setting, "title": TITLES.get(setting.get("model", "")), "words": words}


def find(results: Iterable[Result], **wanted: Any) -> Result | None:
    """The first that was measured in this setting."""
    return next((each for each in results if all(each[key] == value for key, value in wanted.items())), None)


def for_each_model(settings: Iterable[Result]) -> list[Result]:
    """What was measured of each model in each setting, or the setting alone."""
    results, found = measured(), []
    for setting, family in product(settings, FAMILIES.values()):
        wanted = {**setting, "model": family.name, "size": family.size}
        found.append(find(results, **wanted) or _named(wanted))
    return found


def _places(results: Iterable[Result]) -> str:
    places = "; ".join(dict.fromkeys(result["where"] for result in results if "where" in result))
    return f"On {places}." if places else f"{NOT_YET.capitalize()}."


def speeds(found: list[Result], head: str, form: str, note: str) -> str:
    """One line for each result."""
    return listing(head, form, found, f"{_places(found)} {note}")


def by_setting(settings: list[Result], head: str, form: str, note: str) -> str:
    """One line for each setting and model, those that are missing included."""
    return speeds(for_each_model(settings), f"model | setting | {head}", f"{SETTING} | {form}", note)


BOTH, ALL = "reference | adaptive", "reference | adaptive | memory"


def adapted() -> str:
    """Networks of other libraries, adapted, beside themselves."""
    found = sorted(measured("adapted_*"), key=itemgetter("mode"))
    return speeds(found, f"model | setting | {ALL}", f"{SETTING} | {SPEED} | {ALLOCATED}", MEMORY)


def segmentation() -> str:
    """The decoder alone."""
    form = f"{{title}} | {{work}}, {{words}}, {{size}} x {{size}} | {LATENCY} | {ALLOCATED}"
    return speeds(measured("segmentation_speed_*"), f"decoder on | work | {ALL}", form, f"150 classes. {TIMES}")


def resolution() -> str:
    """The same number of pixels in larger images, after the model's own size in the same setting."""
    found, inference = [], [each for each in measured() if (each["work"], each["device"]) == ("inference", "cuda")]
    for family in FAMILIES.values():
        own = [each for each in inference if each["model"] == family.name]
        for how in dict.fromkeys((each["precision"], each["mode"]) for each in own if each["size"] != family.size):
            alike = [each for each in own if (each["precision"], each["mode"]) == how]
            used = [each for each in alike if each["size"] != family.size or each["batch"] == 128]
            found += sorted(used, key=itemgetter("size"))
    return speeds(found, f"model | images | {BOTH}", f"{{title}} | {{size}} x {{size}}, {{words}} | {SPEED}", RATIOS)


def memory() -> str:
    found = for_each_model(_setting(work, "bf16", "eager", 64) for work in ("training", "inference"))
    for result in found:
        default, ours = (load("paper_speed")["memory"][result["model"]][result["work"]][key] for key in PAPERS)
        result["paper"] = {kind: ours[kind] / default[kind] for kind in ("allocated", "reserved")}
    form = f"{{title}} | {{work}} | {{reference[allocated_mib]:,.0f}} MiB | {ALLOCATED} | {{reserved_mib:.3f}}"
    head = "model | work | reference | allocated | reserved | the paper's allocated | the paper's reserved"
    note = "bf16, eager, batch 64. The reference's allocated peak, and ratios of peaks, adaptive / reference. "
    form += " | {paper[allocated]:.3f} | {paper[reserved]:.3f}"
    return listing(head, form, found, note + _places(found))


PAPERS = ("default", "adaptive")


def modules(device: str = "cuda") -> str:
    """One table for each mode."""
    paper, parts = load("paper_speed")["modules"], []
    head = "module | ordinary | ours, fixed | ours, adaptive | delta | of one stage-1 block | the paper's delta"
    form = "{name} | {ordinary_ms:.3f} ms | {fixed_ms:.3f} ms | {adaptive_ms:.3f} ms | {delta_ms:+.3f} ms"
    form += " | {adaptive_of_block:.2f} | +{printed:.2f} ms"
    for result in reversed(measured("modules_speed_*")):
        if result["device"] == device:
            rows = sorted(({**row, "missing": ""} for row in result["rows"]), key=lambda row: "error" in row)
            for row in rows:
                if times := paper.get(row["name"].removeprefix("MViTv2: ").removesuffix(", stage 1")):
                    row["printed"] = times["adaptive"] - (times["default"] or 0)
            shape = f"{result['batch']} x 3 x {result['size']} x {result['size']}"
            how = result["words"].rpartition(", ")[0]
            parts.append(listing(head, form, rows, f"{how}, {shape}. {_places([result])}"))
    return "\n\n".join(parts) or f"{NOT_YET}."


def summary() -> str:
    """The adaptive network's size, its throughput beside the reference's, and the paper's beside its own default."""
    found, rows = for_each_model(SUMMARY.values()), []
    for family in FAMILIES.values():
        with torch.device("meta"):
            parameters = sum(weight.numel() for weight in create_model(f"a_{family.name}").parameters())
        ratios = [cell("{ratios[0]:.2f}", result) for result in found if result["model"] == family.name]
        default, adaptive = (load("paper_speed")["throughput"][family.name][key] for key in PAPERS)
        rows.append([family.title, f"{parameters / 1e6:.1f} M", *ratios, f"{adaptive / default:.2f}"])
    note = f"{_places(found)} Images per second; batch 128, training 256, CPU 8; 1 is parity."
    return table(["adaptive / reference", "# Params", *SUMMARY, "the paper's"], rows, note)


def trainer() -> str:
    """Training on real data beside the bare network."""
    rows = rows_of("training_speed_swin_tiny") + rows_of("training_speed_a_swin_tiny")
    for row in rows:
        row["tests"] = ", ".join(f"{100 * entry['model_top1']:.1f}" for entry in row["log"] if entry["kind"] == "test")
        row["speed"] = row["batch"] / seconds_per_step(row["log"])
        row["kept"] = row["speed"] / row["bare_median"]
    head = "model | bare | training | kept | Top-1 after each epoch | C-Cons. of the final weights | bit-identical"
    form = "`{model}` | {bare_median:,.0f} img/s | {speed:,.0f} img/s | {kept:.0%} | {tests} %"
    form += "".join(f" | {{evaluation[circular][{key}][rate]:.2%}}" for key in ("consistency", "bit_exact"))
    note = (
        f"{row['precision']}, compiled, batch {row['batch']}, on {machine(row)}; consistency in float32 on "
        "10,000 test images. Training's speed is the slope of time over steps in its log, since the clock of these "
        "runs did not wait for the last step of an interval. The logs are in `results/training_speed_*.json`."
    )
    return listing(head, form, rows, note)


def seconds_per_step(log: list[Result]) -> float:
    """Slope of time over steps without the first interval, which compiles: a constant error per interval drops out."""
    entries = [entry for entry in log if entry["kind"] == "train"]
    steps = [after["step"] - before["step"] for before, after in pairwise(entries)]
    return linear_regression(steps, [entry["seconds"] for entry in entries[1:]]).slope


def graphed_steps() -> str:
    """A training step as one CUDA graph beside the eager one, which was measured just before."""
    found = rows_of("graph_speed")
    rows = [{**row, "before": found[number - 1]["milliseconds"]} for number, row in enumerate(found) if row["graph"]]
    for row in rows:
        row["times"] = row["before"] / row["milliseconds"]
    form = "`{model}`, batch {batch} | {before:.1f} ms | {milliseconds:.1f} ms | {times:.1f}"
    note = f"bf16, 32 pixels, on {machine(found[0])}."
    return listing("network | a step | as one graph | times as fast", form, rows, note)


def audit() -> str:
    rows = rows_of("audit_overhead_*")
    for row in rows:
        row["rounds"] = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"])
    head = "where | model | images, batch | forward passes | audit | ratio (each round) | memory beyond the passes"
    form = "{place}, {precision} | {model} | {images}, {batch} | {bare_seconds:.1f} s | {audit_seconds:.1f} s"
    return listing(head, f"{form} | {{ratio:.2f}} ({{rounds}}) | {{extra_memory_mib:.0f}} MiB", rows)


MODEL, MODULES = "speed/model_speed.py --name", "speed/modules_speed.py"
OTHERS = "vit dinov2 torchvision_swin transformers_swin"
LARGER = "model_speed_resolution --models swin --mode eager graph --size 224 448 896 --same-area"
AT_ONCE = _setting("inference", "bf16", "graph", 1)
TABLES = {
    "speed_summary": Table(f"{MODEL} model_speed_compiled --mode compiled", summary),
    "speed_inference": Table(
        f"{MODEL} model_speed_eager --precision bf16 tf32",
        partial(by_setting, [COMPILED, EAGER, TF32], ALL, f"{SPEED} | {ALLOCATED}", MEMORY),
    ),
    "speed_training": Table(
        f"{MODEL} model_speed_training --work training --batch 256 --mode compiled",
        partial(by_setting, [TRAINING], ALL, f"{SPEED} | {ALLOCATED}", MEMORY),
    ),
    "speed_latency": Table(
        f"{MODEL} model_speed_latency --batch 1 --mode graph", partial(by_setting, [AT_ONCE], BOTH, LATENCY, TIMES)
    ),
    "speed_cpu": Table(f"{MODEL} model_speed_cpu --device cpu", partial(by_setting, [CPU], BOTH, SPEED, RATIOS)),
    "speed_memory": Table(f"{MODEL} model_speed_memory --batch 64 --work inference training --rounds 0", memory),
    "speed_modules": Table(f"{MODULES} --mode eager graph", modules),
    "speed_modules_cpu": Table(f"{MODULES} --device cpu", partial(modules, "cpu")),
    "speed_resolution": Table(f"{MODEL} {LARGER}", resolution),
    "speed_adapted": Table(f"{MODEL} adapted_speed --models {OTHERS} --mode eager compiled", adapted),
    "segmentation_speed": Table(
        "speed/model_speed.py --part decoder --models swin swinv2 --batch 16 --work inference training", segmentation
    ),
    "training_speed": Table("speed/training_speed.py --data data/cifar10 --evaluate", trainer),
    "graph_speed": Table(
        "speed/training_speed.py --data data/cifar10 --graph --models swin_mini a_swin_mini", graphed_steps
    ),
    "audit_overhead": Table("speed/audit_overhead.py --device cuda", audit),
}
