"""Measure how much a model's answers depend on where the image lies."""

from ..utils.deprecation import renamed_attributes
from ..utils.lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(
    __name__,
    renamed_attributes(
        __name__,
        Answers="LabelAnswers",
        AuditSettings="AuditOptions",
        EvalSettings="EvalOptions",
        ImageRecord="Record",
        Protocol="ShiftProtocol",
        Request="EvalOptions",
        SceneRecord="Record",
        SceneTally="PixelTally",
        Subject="EvalModel",
        load_subject="load_eval_model",
        subject_of="make_eval_model",
    ),
)
