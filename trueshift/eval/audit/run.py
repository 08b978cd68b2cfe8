"""How often does a model change its answer when the picture moves? Everything a report shows, as plain data."""

from dataclasses import asdict
from typing import Any

from ...data import Source
from ...utils.provenance import circumstances
from ..models.eval_model import Subject
from ..protocols.registry import Protocol, find_protocols
from ..runner.settings import AuditSettings, Progress
from .classification import PictureAudit, usual_protocols
from .examples import spread
from .segmentation import SceneAudit

SCHEMA = 1


def run_audit(
    subjects: list[Subject],
    source: Source,
    settings: AuditSettings | None = None,
    protocols: list[Protocol] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure models on the same images and shifts.

    An interrupt (Ctrl-C) ends it early: what is known by then comes back, marked as partial.

    Args:
        subjects: all classifiers, or all segmentation models.
        source: pictures; for segmentation scenes, or :class:`~trueshift.data.source.WithoutTargets` without masks.

    Returns:
        plain data, the content of ``audit.json``.
    """
    settings = settings or AuditSettings()
    progress = progress or (lambda what, done, total: None)
    skipped: list[dict[str, str]] = []
    audit = _begin(subjects, source, settings, protocols, skipped)
    indices = spread(len(source), settings.limit)
    partial = False
    try:
        audit.measure(indices, progress)
        audit.look_closer(progress)
    except KeyboardInterrupt:
        partial = True
    return {
        "schema": SCHEMA,
        **circumstances(settings.seed),
        "task": audit.task,
        "partial": partial,
        "settings": {**asdict(settings), "shifts": settings.shifts or "all"},
        "data": {
            "title": source.title,
            "images": audit.images,
            "asked": len(indices),
            "skipped": skipped,
            "classes": source.classes,
        },
        "protocols": {
            protocol.name: {
                "title": protocol.title,
                "description": audit.describe(protocol),
                "against_unshifted": protocol.against_unshifted,
            }
            for protocol in audit.protocols
        },
        "models": audit.conclude(),
    }


def _begin(
    subjects: list[Subject],
    source: Source,
    settings: AuditSettings,
    protocols: list[Protocol] | None,
    skipped: list[dict[str, str]],
) -> PictureAudit | SceneAudit:
    if len({subject.dense for subject in subjects}) > 1:
        pixels = next(subject.name for subject in subjects if subject.dense)
        whole = next(subject.name for subject in subjects if not subject.dense)
        raise ValueError(
            f"{pixels} tells a label for each pixel, {whole} one answer for each image: needs models of one kind"
        )
    if subjects[0].dense:
        usual = protocols or find_protocols(["ade20k"])
        return SceneAudit(subjects, source, usual, settings, skipped)
    pictures = source
    usual = protocols or usual_protocols(pictures, subjects[0].preparation.size)
    return PictureAudit(subjects, pictures, usual, settings, skipped)


def answer_name(model: dict[str, Any], label: int) -> str:
    """What a model's answer is called."""
    names = model["classes"]
    return names[label] if names and 0 <= label < len(names) else f"class {label}"
