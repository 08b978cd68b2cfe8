"""How often does a model change its answer when the image moves? Everything a report shows, as plain data."""

import itertools
from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import Any

from ...data import Sample, Source
from ...data.subset import spread
from ...utils.evaluation_mode import in_evaluation
from ..models.eval_model import EvalModel
from ..options import AuditOptions, Progress
from ..protocols.registry import ShiftProtocol, find_protocols
from ..runner.evaluate import result_header
from ..runner.tasks import Task, problem_of, task_of
from .classification import ClassifierFindings
from .segmentation import SegmenterFindings


def run_audit(
    models: list[EvalModel],
    source: Source,
    options: AuditOptions | None = None,
    protocols: list[ShiftProtocol] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure models on the same images and shifts.

    An interrupt (Ctrl-C) ends it early: what is known by then is returned, marked as partial.

    Args:
        models: all classifiers, or all segmentation models.
        source: images; for segmentation with masks, or :class:`~trueshift.data.source.WithoutTargets`.

    Returns:
        plain data, the content of ``audit.json``.
    """
    options = options or AuditOptions()
    progress = progress or (lambda what, done, total: None)
    if len({model.dense for model in models}) > 1:
        whole, pixels = (next(model.name for model in models if model.dense == dense) for dense in (False, True))
        raise ValueError(
            f"{pixels} gives a label for each pixel, {whole} one answer for each image: needs models of one kind"
        )
    protocols = protocols or usual_protocols(models[0], source)
    shifts = shifts_of(protocols, options.shifts)
    kind = SegmenterFindings if models[0].dense else ClassifierFindings
    findings: list[ClassifierFindings] = [kind(task_of(model, source, protocols, options, shifts)) for model in models]
    skipped: list[dict[str, str]] = []
    indices = spread(len(source), options.limit)
    partial = True
    with in_evaluation(*filter(None, [model.module for model in models])), suppress(KeyboardInterrupt):
        # all models side by side, an image at a time, so that an interrupt finds them equally far
        for done, records in enumerate(zip(*_streams([each.task for each in findings], indices), strict=True)):
            if problem := next(filter(None, map(problem_of, records)), None):
                skipped.append({"name": records[0].name, "reason": problem})
            else:
                for finding, record in zip(findings, records, strict=True):
                    finding.count(record, options.worst)
            progress("shifting images", done + 1, len(indices))
        # classifiers are compared with the first one's weak spots; pixels may flip anywhere, in any model
        considered = findings if models[0].dense else findings[:1]
        least = {index: min(each.consistency[index] for each in considered) for index in findings[0].consistency}
        work = list(itertools.product(choose_examples(least, options.examples), findings))
        for done, (index, finding) in enumerate(work):
            finding.look_closer(index, options.plane, findings)
            progress("looking at examples", done + 1, len(work))
        partial = False
    header = result_header(findings[0].task, findings[0].tallies[0].images, skipped)
    return {
        **header,
        "data": {**header["data"], "asked": len(indices)},
        "partial": partial,
        "models": [finding.to_dict() for finding in findings],
    }


def _streams(tasks: list[Task], indices: list[int]) -> list[Iterator[Any]]:
    """The records of each model. Models that take their images alike share one reading of them."""
    alike: dict[Hashable, list[Task]] = {}
    for task in tasks:
        alike.setdefault(task.reading(), []).append(task)
    readings = {how: iter(itertools.tee(some[0].read(indices), len(some))) for how, some in alike.items()}
    return [task.measure(next(readings[task.reading()])) for task in tasks]


def usual_protocols(model: EvalModel, source: Source) -> list[ShiftProtocol]:
    """ADE20K's and crops for segmentation; else circular and standard shifts and magnitudes, and a crop that moves.

    Small images move against zeros, others under a crop; a crop of a small image moves less far.
    """
    if model.dense:
        return find_protocols(["ade20k", "pixel-crop-1", "pixel-crop-8"])
    (cropped,) = find_protocols(["imagenet-standard"])
    size = model.preparation.size
    needed = max(size) + 2 * max(cropped.motion.margin(size))
    small = any(min(sample.image.size) < needed for sample in _first_samples(source))
    standard = ["cifar-standard", "path-8"] if small else [cropped.name, "path-32"]
    return find_protocols(["circular", *standard, "crop-1", "crop-4", "magnitude"])


def _first_samples(source: Source, count: int = 8) -> Iterator[Sample]:
    for index in range(min(len(source), count)):
        with suppress(Exception):  # it is counted and reported when it is measured
            yield source[index]


def shifts_of(protocols: list[ShiftProtocol], shifts: int) -> dict[str, int | None]:
    """How many shifts each protocol gets: those of the magnitude curve share one portion."""
    several = sum(protocol.against_unshifted for protocol in protocols)
    return {
        protocol.name: (max(1, shifts // several) if protocol.against_unshifted else shifts) if shifts else None
        for protocol in protocols
    }


def choose_examples(consistency: dict[int, float], count: int) -> list[int]:
    """Half of them the least consistent images, half evenly spread over the others."""
    worst = sorted(consistency, key=lambda index: (consistency[index], index))[: (count + 1) // 2]
    rest = [index for index in consistency if index not in worst]
    return worst + [rest[position] for position in spread(len(rest), count - len(worst))][: count - len(worst)]


def answer_name(model: dict[str, Any], label: int) -> str:
    """The name of a model's class."""
    names = model["classes"]
    return names[label] if names and 0 <= label < len(names) else f"class {label}"
