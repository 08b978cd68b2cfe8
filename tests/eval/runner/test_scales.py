"""What a protocol measures does not depend on which others are asked for."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from known_models import TINY, ReadsOnePixel, subject

from trueshift.data import EmbeddedSample, read_ahead
from trueshift.eval import (
    AuditOptions,
    Circular,
    EvalOptions,
    ShiftProtocol,
    ZeroPadded,
    find_protocols,
    run_audit,
    run_evaluation,
)
from trueshift.eval.protocols.registry import EraseSquare, VerticalFlip
from trueshift.eval.runner.classify import canvas_groups, measure

ALL = find_protocols(["circular", "cifar-standard", "imagenet-standard", "magnitude-8", "erased-28", "flipped"])


@pytest.mark.parametrize("crop_pct", [1.0, 0.9, 0.875])
def test_an_evaluation_of_each_protocol_alone_is_that_of_all(crop_pct):
    model = subject(ReadsOnePixel(), preparation=replace(TINY, crop_pct=crop_pct))
    settings = EvalOptions(limit=20, batch_size=16, workers=1)
    together = run_evaluation(model, EmbeddedSample(), ALL, settings)["measured"]
    assert list(together) == [protocol.name for protocol in ALL]
    for protocol in ALL:
        alone = run_evaluation(model, EmbeddedSample(), [protocol], settings)["measured"]
        assert alone[protocol.name] == together[protocol.name]


def test_an_audit_of_each_protocol_alone_is_that_of_all():
    models = [subject(ReadsOnePixel()), subject(ReadsOnePixel(), preparation=replace(TINY, crop_pct=0.9))]
    settings = AuditOptions(limit=12, shifts=3, examples=0, batch_size=16)

    def audited(protocols):
        return [each["measured"] for each in run_audit(models, EmbeddedSample(), settings, protocols)["models"]]

    together = audited(ALL)
    for protocol in ALL:
        for alone, beside in zip(audited([protocol]), together, strict=True):
            assert alone[protocol.name] == beside[protocol.name]


def test_a_canvas_is_shared_where_the_picture_has_room():
    def names(crop_pct):
        return [[each.name for each in group] for group in canvas_groups(ALL, replace(TINY, crop_pct=crop_pct))]

    together = [protocol.name for protocol in ALL]
    assert names(0.875) == [together]
    assert names(0.9) == [[name for name in together if name != "imagenet-standard"], ["imagenet-standard"]]


def test_a_picture_that_can_be_read_only_once_is_left_out():
    class Once(EmbeddedSample):
        before = count()  # two threads may ask at the same time

        def __getitem__(self, index):
            if index == 3 and next(self.before):
                raise OSError("connection reset")
            return super().__getitem__(index)

    settings = EvalOptions(limit=6, batch_size=16, workers=1)
    found = run_evaluation(subject(ReadsOnePixel()), Once(), ALL, settings)
    assert [entry["reason"] for entry in found["data"]["skipped"]] == ["OSError: connection reset"]
    assert {said["consistency"]["images"] for said in found["measured"].values()} == {5}


@pytest.mark.parametrize("distortion", [EraseSquare(0.5), VerticalFlip(), None])
@pytest.mark.parametrize("motion", [Circular(), Circular(0.25), ZeroPadded(0.125)])
def test_protocols_with_one_distortion_each_see_their_own_picture(distortion, motion):
    first = ShiftProtocol("first", "first", Circular(), distortion)
    second = ShiftProtocol("second", "second", motion, distortion, against_unshifted=True)
    pixels = torch.nn.Flatten()

    def answers(protocols):
        pictures = read_ahead(EmbeddedSample(), range(6), TINY)
        shifts = {"first": 2, "second": 3}
        return [record.answers["second"] for record in measure(pixels, pictures, protocols, TINY, shifts, 0, 8)]

    for alone, beside in zip(answers([second]), answers([first, second]), strict=True):
        np.testing.assert_array_equal(alone.labels, beside.labels)
        np.testing.assert_array_equal(alone.change, beside.change)
        np.testing.assert_array_equal(alone.exact, beside.exact)
