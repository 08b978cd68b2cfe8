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
# new paths, and what they were before
_RENAMED = {
    "data.factory": "data.opening",
    "data.prefetch": "data.reading",
    "data.segmentation": "data.scene_folders",
    "data.transforms": "data.prepare data.scene_preparation",
    "eval.audit.classification": "eval.picture_audit",
    "eval.audit.segmentation": "eval.scene_audit",
    "eval.fields": "eval.runner.fields",
    "eval.metrics.aggregate": "eval.scene_tally eval.tally",
    "eval.metrics.consistency": "eval.intervals",
    "eval.models.eval_model": "eval.models.dense eval.pixel_logits eval.subject",
    "eval.models.feature_maps": "eval.stages",
    "eval.models.load": "eval.loading",
    "eval.options": "eval.settings",
    "eval.protocols.registry": "eval.distortions",
    "eval.protocols.shifts": "eval.motions eval.protocols.real_motion",
    "eval.runner.classify": "eval.measure eval.runner.view_batches eval.views",
    "eval.runner.evaluate": "eval.identity eval.runner.fingerprint",
    "eval.runner.segment": "eval.runner.read_scenes eval.scene_reading eval.segmentation",
    "eval.runner.tasks": "eval.kinds",
    "layers.attention": "layers.align",
    "layers.merge": "layers.conv",
    "layers.tokenize": "layers.anchor",
    "models.backbone": "models.feature_frame models.frame",
    "models.bundled_weights": "models.shipped",
    "models.config": "models.choices models.selection_config",
    "models.hub": "models.saving tasks.saving",
    "models.stage": "layers.perceptron",
    "models.swin": "models.swin_v2",
    "ops.geometry.interpolate": "ops.enlarge",
    "ops.geometry.periodic": "ops.repeating",
    "ops.nn.autocast": "ops.precision",
    "ops.selection.choose": "ops.select",
    "ops.selection.content_hash": "ops.content",
    "ops.selection.gram_energy": "ops.energy",
    "ops.selection.plain": "ops.arithmetic",
    "ops.selection.projection_energy": "ops.projected",
    "ops.selection.quantised_image": "ops.pixels",
    "report.page": "report.output",
    "segment_command": "report.segmenting",
    "train.cli": "train.arguments",
    "train.compile_check": "train.compiling",
    "train.data.augment": "train.data.photometric train.photometric",
    "train.data.loader": "train.loading",
    "train.data.on_device": "train.resident",
    "train.data.sampler": "train.order",
    "train.data.splits": "train.training_data",
    "train.divergence": "train.watch",
    "train.preemption": "train.stopping",
    "train.trainer": "train.loop",
    "utils.async_copy": "ops.arriving",
    "utils.distributed": "eval.processes",
    "utils.rng": "train.determinism train.seeds",
}
MOVED = {f"trueshift.{old}": f"trueshift.{new}" for new, olds in _RENAMED.items() for old in olds.split()}
for (_before, _after), _names in _SAME_NAME.items():
    for _name in _names.split():
        MOVED[".".join(filter(None, ("trueshift", _before, _name)))] = f"trueshift.{_after}.{_name}"


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
