"""Right and wrong where the data numbers the model's classes in another order."""

from dataclasses import replace

import pytest
import timm
from known_models import ByPixel, Constant, Reversed, Scenes, noise, segmenter, subject

from trueshift.data import EmbeddedSample
from trueshift.data.subset import spread
from trueshift.eval import AuditOptions, EvalOptions, find_protocols, load_eval_model, run_audit, run_evaluation
from trueshift.eval.models.eval_model import make_eval_model

CIRCULAR = find_protocols(["circular"])


@pytest.fixture(scope="module")
def model():
    return load_eval_model("swin_mini")


def test_an_evaluation_goes_by_the_names_of_classes(model, tmp_path):
    settings = EvalOptions(limit=10, batch_size=30, workers=1)
    wanted = run_evaluation(model, EmbeddedSample(), CIRCULAR, settings)["measured"]
    assert wanted["circular"]["top1"]["rate"] > 0.5
    for _ in range(2):  # also from the answers on disk
        assert run_evaluation(model, Reversed(), CIRCULAR, settings, tmp_path)["measured"] == wanted


def test_an_audit_goes_by_the_names_of_classes(model):
    settings = AuditOptions(limit=10, shifts=2, examples=0)
    (wanted,), (found,) = (
        run_audit([model], source, settings, CIRCULAR)["models"] for source in (EmbeddedSample(), Reversed())
    )
    assert found["measured"] == wanted["measured"]
    turned = [{**row, "label": 9 - row["label"]} for row in reversed(found["by_class"])]  # by the numbers of the data
    assert turned == wanted["by_class"]


def test_other_names_go_by_their_order():
    constant, source = replace(subject(Constant()), classes=[f"class {number}" for number in range(10)]), Reversed()
    found = run_evaluation(constant, source, CIRCULAR, EvalOptions(limit=60, workers=1))["measured"]["circular"]
    right = sum(source[index].target == 3 for index in spread(len(source), 60))
    assert found["top1"]["rate"] * 60 == pytest.approx(right, abs=1e-6)


def test_masks_in_another_order_are_refused():
    turned, source = replace(segmenter(ByPixel()), classes=["blue", "green", "red"]), Scenes(noise(2))
    for measured in (run_audit, run_evaluation):
        protocols = {"protocols": find_protocols(["ade20k"])}
        with pytest.raises(ValueError, match=r"class 0 is red to the data, blue to the model\): needs masks"):
            measured([turned] if measured is run_audit else turned, source, **protocols)


def test_names_of_other_classes_are_not_shown():
    """A classifier of timm's with fewer answers keeps the names of those that it had."""
    network = timm.create_model("resnet18", num_classes=3)
    network.pretrained_cfg["label_names"] = ["ant", "bee", "cat"]
    assert make_eval_model(network, "three", "random").classes == ["ant", "bee", "cat"]
    network.reset_classifier(2)
    assert make_eval_model(network, "two", "random").classes is None
