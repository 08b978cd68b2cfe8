"""A closer look at single images: the answer at every shift of a plane, the change of the tokens of every stage."""

from typing import Any

import numpy as np

from ...data import Source, read_ahead
from ..models.eval_model import Subject
from ..models.feature_maps import token_errors
from ..protocols.registry import Protocol
from ..protocols.shifts import Neighbourhood
from ..runner.classify import measure
from ..runner.records import ImageRecord


def plane_of_answers(
    subject: Subject, source: Source, index: int, side: int, batch_size: int, device: str
) -> dict[str, Any]:
    """The answer under every shift of a square around zero, one pixel apart."""
    protocol = Protocol("plane", "plane of shifts", Neighbourhood(side=side))
    rows, columns = protocol.motion.steps(subject.preparation.size)
    pictures = read_ahead(source, [index], subject.preparation)
    (record,) = measure(
        subject.forward, pictures, [protocol], subject.preparation, {"plane": None}, 0, batch_size, device
    )
    assert isinstance(record, ImageRecord)
    answers = record.answers["plane"]
    labels = answers.labels[1:].reshape(len(rows), len(columns))
    return {
        "index": index,
        "name": record.name,
        "label": record.label,
        "rows": [rows.start, rows.stop],
        "columns": [columns.start, columns.stop],
        "labels": labels.tolist(),
        "largest_logit_change": float(answers.change.max()),
        "bit_exact": float(answers.exact[1:].mean()),
        "different_answers": len(np.unique(labels)),
    }


def changes_of_tokens(subject: Subject, source: Source, index: int, device: str) -> dict[str, Any]:
    """How each stage's tokens change under a shift by one row and one column."""
    assert subject.maps is not None
    picture = source[index]
    canvas = subject.preparation.canvas(picture.image).to(device)
    stages = token_errors(subject.maps, subject.preparation.normalise(canvas))
    return {
        "index": index,
        "name": picture.name,
        "shift": [1, 1],
        "stages": [
            {"error": np.round(stage.error, 6).tolist(), "scale": stage.scale, "largest": stage.largest}
            for stage in stages
        ],
    }
