"""Tables of what was found bit-identical, and how often choices change."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from benchmarks.common.record import Recorded, Table, listing, load, machine, rows_of

HEAD, COUNTS = "pairs of (image, shift) | not bit-identical", "{pairs:,} | {failures:,}"
PLACE = "{where}, torch {versions[torch]} | {checks}"


def frame_stability() -> str:
    result = load("frame_stability")["result"]
    kept = result["kept_percent"]
    columns = list(next(iter(kept.values())))
    rows = [{"change": change, **row} for change, row in kept.items()]
    seam, frame = (result["true_corner_found_percent"][name] for name in ("seam", "frame found"))
    note = (
        f"{result['images']} ImageNet photographs at {result['size']} pixels that the finder was not trained on, "
        f"untrained projection. The photograph's own border is found in {seam['both']:.1f} % (rows {seam['rows']:.1f}, "
        f"columns {seam['columns']:.1f}) by the seam, in {frame['both']:.1f} % ({frame['rows']:.1f}, "
        f"{frame['columns']:.1f}) by the frame finder, the first one, which was smaller than today's."
    )
    head = " | ".join(["change", *(f"{column} kept" for column in columns)])
    return listing(head, " | ".join(["{change}", *(f"{{{column}:.1f}} %" for column in columns)]), rows, note)


def layers() -> str:
    return listing(f"where | checks | {HEAD}", f"{PLACE} | {COUNTS}", rows_of("exactness_*"))


def models() -> str:
    """One line per place and kind of check, all models in it."""
    rows = rows_of("model_exactness_*")
    for row in rows:
        row["checks"] = row["checks"] if " x " in row["checks"] else f"`{row['checks']}`"
        row["every"] = "; all shifts" * (row["shifts"] == "all")
    form = f"{PLACE}{{every}} | {COUNTS}"
    return listing(f"where | models | {HEAD}", form, _summed(rows, "checks", "date", "where"))


def segmentation() -> str:
    rows = [{**row, "sizes": " x ".join(map(str, row["size"]))} for row in rows_of("segmentation_exactness_cuda")]
    note = f"Hostile images and photographs, random statistics of every norm, float32, on {machine(rows[0])}."
    form = f"`{{model}}` | {{sizes}} | {COUNTS}"
    return listing(f"UperNet on | sizes | {HEAD}", form, _summed(rows, "sizes", "model"), note)


def _summed(rows: list[Recorded], names: str, *keys: str) -> Iterator[Recorded]:
    """One row for those that have the same keys: counts are added up, names listed."""
    for _, group in groupby(rows, itemgetter(*keys)):
        here = list(group)
        counts = {count: sum(row[count] for row in here) for count in ("pairs", "failures")}
        yield {**here[0], **counts, names: ", ".join(row[names] for row in here)}


def without_anchor() -> str:
    head, form = "where | model", "{place} | {model}"
    for kind in ("clear", "close"):
        head += f" | {kind} pairs | flipped | largest change"
        form += f" | {{{kind}}} | {{{kind}_flipped}} | {{{kind}_change:.1e}}"
    return listing(head, form, rows_of("without_anchor_*"))


def sample_consistency() -> str:
    rows = rows_of("sample_consistency_cuda")
    head = "model | C-Cons. | images with one answer under all shifts | bit-identical | largest change of a logit"
    form = "{model} | {consistency[rate]:.2%} | {worst_case[rate]:.2%} | {bit_exact[rate]:.2%}"
    note = f"{32 * 32 * rows[0]['top1']['images']:,} views for each model, float32, on {machine(rows[0])}."
    return listing(head, f"{form} | {{largest_logit_change:.3g}}", rows, note)


TABLES = {
    "exactness": Table("exactness/bit_identity.py layers --shifts 64", layers),
    "model_exactness": Table("exactness/bit_identity.py models --shifts 8", models),
    "segmentation_exactness": Table(
        "exactness/bit_identity.py segmentation --shifts 4 --places cuda-float32", segmentation
    ),
    "without_anchor": Table("exactness/bit_identity.py without_anchor --places cuda-float32", without_anchor),
    "sample_consistency": Table(
        "exactness/bit_identity.py sample --places cuda-float32 --batch 1000", sample_consistency
    ),
    "frame_stability": Table("exactness/frame_stability.py", frame_stability),
}
