"""Old module paths: importing one gives the module that holds its content now, with a DeprecationWarning."""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .utils.deprecation import warn_deprecated

# from one room to another under the same name
_SAME_NAME = {
    ("", "utils"): "checks evaluation_mode files locks provenance",
    ("eval", "eval.runner"): "evaluate records",
    ("ops", "ops.nn"): "attention depthwise max_pool",
    ("ops", "ops.geometry"): "blocks grid polyphase rel_pos resample shift windows",
    ("ops", "ops.selection"): "exact plain seam",
    ("train", "train.data"): "augment",
}
_RENAMED = {
    "data.opening": "data.factory",
    "data.prepare": "data.transforms",
    "data.reading": "data.prefetch",
    "data.scene_folders": "data.segmentation",
    "data.scene_preparation": "data.transforms",
    "eval.distortions": "eval.protocols.registry",
    "eval.identity": "eval.runner.evaluate",
    "eval.intervals": "eval.metrics.consistency",
    "eval.kinds": "eval.runner.tasks",
    "eval.loading": "eval.models.load",
    "eval.measure": "eval.runner.classify",
    "eval.models.dense": "eval.models.eval_model",
    "eval.motions": "eval.protocols.shifts",
    "eval.picture_audit": "eval.audit.classification",
    "eval.protocols.real_motion": "eval.protocols.shifts",
    "eval.pixel_logits": "eval.models.eval_model",
    "eval.processes": "utils.distributed",
    "eval.scene_audit": "eval.audit.segmentation",
    "eval.runner.fields": "eval.fields",
    "eval.runner.fingerprint": "eval.runner.evaluate",
    "eval.runner.read_scenes": "eval.runner.segment",
    "eval.scene_reading": "eval.runner.segment",
    "eval.scene_tally": "eval.metrics.aggregate",
    "eval.segmentation": "eval.runner.segment",
    "eval.settings": "eval.options",
    "eval.stages": "eval.models.feature_maps",
    "eval.subject": "eval.models.eval_model",
    "eval.tally": "eval.metrics.aggregate",
    "eval.runner.view_batches": "eval.runner.classify",
    "eval.views": "eval.runner.classify",
    "layers.align": "layers.attention",
    "layers.anchor": "layers.tokenize",
    "layers.conv": "layers.merge",
    "layers.perceptron": "models.stage",
    "models.choices": "models.config",
    "models.feature_frame": "models.backbone",
    "models.frame": "models.backbone",
    "models.saving": "models.hub",
    "models.selection_config": "models.config",
    "models.shipped": "models.bundled_weights",
    "models.swin_v2": "models.swin",
    "ops.arithmetic": "ops.selection.plain",
    "ops.arriving": "utils.async_copy",
    "ops.content": "ops.selection.content_hash",
    "ops.energy": "ops.selection.gram_energy",
    "ops.enlarge": "ops.geometry.interpolate",
    "ops.folded": "ops.nn.fold_layernorm",
    "ops.pixels": "ops.selection.quantised_image",
    "ops.precision": "ops.nn.autocast",
    "ops.projected": "ops.selection.projection_energy",
    "ops.repeating": "ops.geometry.periodic",
    "ops.select": "ops.selection.choose",
    "report.output": "report.page",
    "report.segmenting": "segment_command",
    "tasks.saving": "models.hub",
    "train.arguments": "train.cli",
    "train.compiling": "train.compile_check",
    "train.determinism": "utils.rng",
    "train.loading": "train.data.loader",
    "train.loop": "train.trainer",
    "train.data.photometric": "train.data.augment",
    "train.order": "train.data.sampler",
    "train.photometric": "train.data.augment",
    "train.resident": "train.data.on_device",
    "train.seeds": "utils.rng",
    "train.stopping": "train.preemption",
    "train.training_data": "train.data.splits",
    "train.watch": "train.divergence",
}
MOVED = {
    f"trueshift.{old}": f"trueshift.{new}"
    for old, new in (
        *_RENAMED.items(),
        *(
            (f"{before}.{name}".lstrip("."), f"{after}.{name}")
            for (before, after), names in _SAME_NAME.items()
            for name in names.split()
        ),
    )
}


class _Alias(Loader):
    """Hands out the module at the new path, as it is."""

    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self.new)
        self.own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own  # the import system has written the old name there


class _OldPaths(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in MOVED:
            return None
        warn_deprecated(fullname, MOVED[fullname])
        return ModuleSpec(fullname, _Alias(MOVED[fullname]))


def install() -> None:
    """Make the old paths importable."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())
