"""Write the tables in README and docs from the result files: between ``<!-- table NAME -->`` and ``<!-- end -->``.

python benchmarks/tables.py            # --check: fail if a document is not up to date
"""

import json
import re
import sys
from itertools import pairwise
from statistics import linear_regression
from typing import Any

from record import RESULTS, ROOT, machine
from small_plots import draw_all
from small_tables import TABLES as SMALL_TABLES
from speed_tables import TABLES as SPEED_TABLES

DOCUMENTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("paper_map", "exactness", "models", "audit", "training", "segmentation")),
    *(f"docs/{name}.md" for name in ("speed", "results")),
)


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def frame_stability() -> str:
    recorded = load("frame_stability")
    result = recorded["result"]
    columns = list(next(iter(result["kept_percent"].values())))
    lines = [
        "| change | " + " | ".join(f"{column} kept" for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for change, row in result["kept_percent"].items():
        lines.append(f"| {change} | " + " | ".join(f"{row[column]:.1f} %" for column in columns) + " |")
    found = result["true_corner_found_percent"]
    note = (
        f"{result['images']} ImageNet photographs at {result['size']} pixels, untrained projection. The seam is the "
        f"photograph's own border in {found['both']:.1f} % (rows {found['rows']:.1f}, columns {found['columns']:.1f})."
    )
    return "\n".join([*lines, "", note])


def exactness() -> str:
    lines = ["| where | checks | pairs of (image, shift) | not bit-identical |", "|---|---|---|---|"]
    for path in sorted(RESULTS.glob("exactness_*.json")):
        recorded = json.loads(path.read_text())
        torch_version = recorded["versions"]["torch"]
        lines += [
            f"| {row['where']}, torch {torch_version} | {row['checks']} | {row['pairs']:,} | {row['failures']} |"
            for row in recorded["result"]["rows"]
        ]
    return "\n".join(lines)


def training_speed() -> str:
    lines = [
        "| model | bare | training | kept | Top-1 after each epoch | C-Cons. of the final weights | bit-identical |",
        "|---|---|---|---|---|---|---|",
    ]
    recorded: dict[str, Any] = {}
    for name in ("training_speed_swin_tiny", "training_speed_a_swin_tiny"):
        recorded = load(name)
        for row in recorded["result"]["rows"]:
            tests = [entry["model_top1"] for entry in row["log"] if entry["kind"] == "test"]
            circular = row["evaluation"]["circular"]
            speed = recorded["result"]["batch"] / _seconds_per_step(row["log"])
            lines.append(
                f"| `{row['model']}` | {row['bare_median']:,.0f} img/s | {speed:,.0f} img/s "
                f"| {100 * speed / row['bare_median']:.0f} % | {', '.join(f'{100 * top1:.1f}' for top1 in tests)} % "
                f"| {100 * circular['consistency']['rate']:.2f} % | {100 * circular['bit_exact']['rate']:.2f} % |"
            )
    result = recorded["result"]
    note = (
        f"{result['precision']}, compiled, batch {result['batch']}, on {machine(recorded)}; consistency in float32 on "
        "10,000 test images. Training's speed is the slope of time over steps in its log, since the clock of these "
        "runs did not wait for the last step of an interval. The logs are in `results/training_speed_*.json`."
    )
    return "\n".join([*lines, "", note])


def _seconds_per_step(log: list[dict[str, Any]]) -> float:
    """The slope of time against steps over the logged intervals, of which some are short.

    A constant that each interval misses, such as a step not waited for, does not enter. The first interval compiles.
    """
    told = [entry for entry in log if entry["kind"] == "train"]
    steps = [after["step"] - before["step"] for before, after in pairwise(told)]
    return linear_regression(steps, [entry["seconds"] for entry in told[1:]]).slope


def model_exactness() -> str:
    """One line per place and kind of check, all models in it."""
    lines = ["| where | models | pairs of (image, shift) | not bit-identical |", "|---|---|---|---|"]
    for path in sorted(RESULTS.glob("model_exactness_*.json")):
        recorded = json.loads(path.read_text())
        every = "; all shifts" if recorded["result"]["shifts"] == "all" else ""
        rows = recorded["result"]["rows"]
        for where in dict.fromkeys(row["where"] for row in rows):
            here = [row for row in rows if row["where"] == where]
            names = ", ".join(f"`{row['checks']}`" if " x " not in row["checks"] else row["checks"] for row in here)
            pairs, failures = (sum(row[key] for row in here) for key in ("pairs", "failures"))
            place = f"{where}, torch {recorded['versions']['torch']}"
            lines.append(f"| {place} | {names}{every} | {pairs:,} | {failures} |")
    return "\n".join(lines)


def without_anchor() -> str:
    lines = [
        "| where | model | clear pairs | flipped | largest change | close pairs | flipped | largest change |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("without_anchor_*.json")):
        recorded = json.loads(path.read_text())
        where = recorded["machine"]["gpu"] or recorded["machine"]["processor"]
        lines += [
            f"| {where} | {row['model']} | {row['clear']} | {row['clear_flipped']} | {row['clear_change']:.1e} "
            f"| {row['close']} | {row['close_flipped']} | {row['close_change']:.1e} |"
            for row in recorded["result"]["rows"]
        ]
    return "\n".join(lines)


def sample_consistency() -> str:
    recorded = load("sample_consistency_cuda")
    lines = [
        "| model | C-Cons. | images with one answer under all shifts | bit-identical | largest change of a logit |",
        "|---|---|---|---|---|",
    ]
    for row in recorded["result"]["rows"]:
        rates = " | ".join(f"{100 * row[key]['rate']:.2f} %" for key in ("consistency", "worst_case", "bit_exact"))
        lines.append(f"| {row['model']} | {rates} | {row['largest_logit_change']:.3g} |")
    views = recorded["result"]["views"]
    return "\n".join([*lines, "", f"{views:,} views for each model, float32, on {machine(recorded)}."])


def audit_overhead() -> str:
    lines = [
        "| where | model | images, batch | forward passes | audit | ratio (each round) | memory beyond the passes |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("audit_overhead_*.json")):
        recorded = json.loads(path.read_text())
        result = recorded["result"]
        where = f"{recorded['machine']['gpu'] or recorded['machine']['processor']}, {result['precision']}"
        for row in result["rows"]:
            rounds = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"])
            lines.append(
                f"| {where} | {row['model']} | {result['images']}, {result['batch']} | {row['bare_seconds']:.1f} s | "
                f"{row['audit_seconds']:.1f} s | {row['ratio']:.2f} ({rounds}) | {row['extra_memory_mib']:.0f} MiB |"
            )
    return "\n".join(lines)


def camvid() -> str:
    lines = [
        "| backbone | mIoU | mASCC | logits bit-identical under circular shifts | mASSC |",
        "|---|---|---|---|---|",
    ]
    recorded: dict[str, Any] = {}
    for name in ("swin_tiny", "a_swin_tiny", "swinv2_tiny", "a_swinv2_tiny"):
        if not (RESULTS / f"camvid_{name}.json").exists():
            lines.append(f"| `{name}` | not run yet | | | |")
            continue
        recorded = load(f"camvid_{name}")
        circular, standard = (recorded["result"]["evaluation"][f"ade20k-{kind}"] for kind in ("circular", "standard"))
        shares = (circular["mean_iou"], circular["consistency"]["rate"], circular["bit_exact"]["rate"])
        told = " | ".join(f"{100 * share:.2f} %" for share in (*shares, standard["consistency"]["rate"]))
        lines.append(f"| `{name}` | {told} |")
    steps, images = recorded["result"]["steps"], recorded["result"]["evaluation"]["ade20k-circular"]["consistency"]
    note = (
        f"CamVid from random weights, {steps:,} steps of 16 images, one seed, the same recipe and circular padding for "
        f"all; measured in float32 on {images['images']} test images with one random pair of shifts each, on "
        f"{machine(recorded)}. The logs are in `results/camvid_*.json`."
    )
    return "\n".join([*lines, "", note])


def segmentation_speed() -> str:
    lines = [
        "| decoder on | work | ordinary | equivariant | time | memory |",
        "|---|---|---|---|---|---|",
    ]
    recorded = load("segmentation_speed_cuda")
    for row in recorded["result"]["rows"]:
        mode = "compiled" if row["compiled"] else "eager"
        work = f"{row['work']}, bf16, {mode}, {row['batch']} x {row['size']} x {row['size']}, {row['classes']} classes"
        times = " | ".join(f"{row['milliseconds'][kind]:.1f} ms" for kind in ("ordinary", "equivariant"))
        low, high = row["quartiles"]
        ratio = f"{row['time_ratio']:.3f} ({low:.3f} to {high:.3f})"
        lines.append(f"| {row['backbone']} | {work} | {times} | {ratio} | {row['memory_ratio']:.3f} |")
    return "\n".join([*lines, "", f"`{recorded['command']}` on {machine(recorded)}; medians and quartiles."])


def segmentation_exactness() -> str:
    lines = ["| UperNet on | sizes | pairs of (image, shift) | not bit-identical |", "|---|---|---|---|"]
    recorded = load("segmentation_exactness_cuda")
    rows = recorded["result"]["rows"]
    for name in dict.fromkeys(row["model"] for row in rows):
        here = [row for row in rows if row["model"] == name]
        sizes = ", ".join(f"{row['size'][0]} x {row['size'][1]}" for row in here)
        pairs, failures = (sum(row[key] for row in here) for key in ("pairs", "failures"))
        lines.append(f"| `{name}` | {sizes} | {pairs} | {failures} |")
    note = f"Hostile images and photographs, random statistics of every norm, float32, on {machine(recorded)}."
    return "\n".join([*lines, "", note])


TABLES = {
    "camvid": camvid,
    "segmentation_speed": segmentation_speed,
    "segmentation_exactness": segmentation_exactness,
    "training_speed": training_speed,
    "frame_stability": frame_stability,
    "exactness": exactness,
    "model_exactness": model_exactness,
    "without_anchor": without_anchor,
    "sample_consistency": sample_consistency,
    "audit_overhead": audit_overhead,
    **SPEED_TABLES,
    **SMALL_TABLES,
}


def main() -> None:
    stale = []
    if "--check" not in sys.argv:
        draw_all(ROOT / "docs" / "images")
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        fresh = re.sub(
            r"(<!-- table (\w+) -->\n).*?(<!-- end -->)",
            lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}",
            text,
            flags=re.DOTALL,
        )
        if fresh != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(fresh)
    if stale:
        print("not up to date:" if "--check" in sys.argv else "written:", *stale)
    sys.exit(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    main()
