"""Audits to draw: small, with names that would break a page that does not escape them, and a broken image."""

import numpy as np
import pytest
import torch
from known_models import ByPixel, ByPlace, Scenes, noise, save_field_net, segmenter
from PIL import Image

from trueshift.data import ImageFolder
from trueshift.eval import AuditOptions, EvalOptions, adapted_twin, make_eval_model, run_audit, run_field_evaluation
from trueshift.eval.fields import example_rollouts
from trueshift.models import create_model
from trueshift.report.fields import write_field_audit
from trueshift.report.page import write_audit

NASTY = "<script>alert(1)<script>&\"quoted\" 'name'"


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """An audit of classifiers and its page, to be read only."""
    folder, generator = tmp_path_factory.mktemp("report"), np.random.default_rng(0)
    for label, name in enumerate([NASTY, "b" * 60, "c"]):
        (folder / "data" / name).mkdir(parents=True)
        for number in range(2):
            pixels = generator.integers(0, 256, (48, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "data" / name / f"<img src=x onerror=alert({label}{number})>.png")
    (folder / "data" / "c" / "torn <b>.png").write_bytes(b"torn")
    source, options = ImageFolder(folder / "data"), EvalOptions(random_weights=True)
    torch.manual_seed(0)
    network = create_model("swin_mini", embed_dim=16, depths=(1, 1), num_heads=(1, 2))
    torch.nn.init.normal_(network.patch_embed.proj.weight)  # so that answers change
    ordinary = make_eval_model(network, "swin_tiny_patch4_window7_224", "random", options, random=True)  # a long name
    quick = AuditOptions(limit=8, shifts=4, examples=2, plane=4, batch_size=32)
    found = run_audit([ordinary, adapted_twin(ordinary, options)], source, quick)
    return found, write_audit(found, source, folder)


class NastyScenes(Scenes):
    def name(self, index):
        return f"<b>{index} $_{{x$"


@pytest.fixture(scope="session")
def scenes():
    return NastyScenes([*noise(3), (OSError("torn <b>"), None)], (NASTY, "green", "blue"))


@pytest.fixture(scope="session")
def written_scenes(tmp_path_factory, scenes):
    """The same of segmentation models."""
    models = [segmenter(ByPlace(), "<img src=x onerror=alert(1)>"), segmenter(ByPixel(), "pixel $\\frac$")]
    found = run_audit(models, scenes, AuditOptions(shifts=3, examples=2, batch_size=4))
    return found, write_audit(found, scenes, tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="session")
def written_fields(tmp_path_factory):
    """The same of networks for fields of unequal sides, and too short for the longest rollouts."""
    folder, torn = tmp_path_factory.mktemp("fields"), "<img src=x onerror=alert(1)> torn <b> $_{x$"
    names = {f"ordinary {torn}": "swin_mini", "adaptive <script>alert(1)": "a_swin_mini"}
    for name, model in names.items():
        save_field_net(folder / name, model, known=((0.0, 0.0), (1.0, 1.0)))
    states = np.random.default_rng(0).standard_normal((1, 11, 2, 16, 32)).astype(np.float32)
    np.save(folder / "test.npy", states)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # for short names
        found = run_field_evaluation(list(names), folder)
        return found, write_field_audit(found, example_rollouts(found, list(names), folder), folder)
