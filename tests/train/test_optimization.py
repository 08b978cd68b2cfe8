"""Learning rates: in proportion to the batch, a function of the step alone, smaller where and when it is asked for."""

from dataclasses import replace
from itertools import pairwise
from math import cos, pi

import pytest
from torch import nn

from trueshift import create_model
from trueshift.train.config import OptimizerConfig, ScheduleConfig, TrainConfig
from trueshift.train.data.sampler import BatchOrder
from trueshift.train.optimization import build_optimizer, build_schedule, rate_scale
from trueshift.train.trainer import Trainer

STEPS = 10  # in an epoch


def configured(batch_size=1024, epochs=20, **given):
    """Values of optimizer and schedule by name; `schedule_name` for the one that both have."""
    names = {"name": given.pop("schedule_name", "cosine")}
    schedule = {key: given.pop(key) for key in list(given) if key in ScheduleConfig.__dataclass_fields__}
    return TrainConfig(
        optimizer=OptimizerConfig(**{"lr": 1e-3, "lr_batch_size": 1024, **given}),
        schedule=ScheduleConfig(epochs=epochs, **names, **schedule),
        batch_size=batch_size,
    )


def rates(config, steps=None, in_epoch=STEPS):
    """The learning rate of every step of a run."""
    optimizer = build_optimizer(config, nn.Linear(3, 2))
    schedule = build_schedule(config, optimizer, in_epoch)
    found = []
    for step in steps if steps is not None else range(config.schedule.epochs * STEPS):
        schedule.step_update(step)
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize(("batch", "at", "scale"), [(48, 1024, 48 / 1024), (2048, 512, 4), (48, 0, 1)])
def test_all_rates_grow_with_the_batch(batch, at, scale):
    given = {"warmup_epochs": 2, "warmup_lr": 1e-6, "min_lr": 1e-5, "cooldown_epochs": 2}
    config = configured(batch, lr_batch_size=at, **given)
    assert rate_scale(config) == scale
    assert rates(config) == pytest.approx([rate * scale for rate in rates(configured(**given))])
    assert rates(configured(batch, lr_batch_size=at, scale_min_lr=False, **given))[-1] == pytest.approx(1e-5)


@pytest.mark.parametrize("after", [True, False])
def test_a_warm_up_a_curve_and_a_cooldown(after):
    given = {"warmup_epochs": 4, "warmup_lr": 1e-6, "min_lr": 1e-5, "cooldown_epochs": 3}
    found = rates(configured(curve_after_warmup=after, **given))
    assert found[0] == pytest.approx(1e-6)
    grown = [after - before for before, after in pairwise(found[:40])]
    assert grown == pytest.approx([(1e-3 - 1e-6) / 40] * 39)
    # a curve that began at the first step is 4 of 17 epochs down when the warm-up ends
    down = 0 if after else 4 / 17
    assert max(found) == found[40 if after else 39] <= 1e-3
    assert found[40] == pytest.approx(1e-5 + (1e-3 - 1e-5) * (1 + cos(pi * down)) / 2)
    assert all(after < before for before, after in pairwise(found[40:170]))
    assert found[169] == pytest.approx(1e-5, rel=0.02)
    assert found[170:] == [pytest.approx(1e-5)] * 30


@pytest.mark.parametrize("name", ["cosine", "tanh", "poly", "step"])
def test_the_step_alone_decides_whatever_was_asked_before(name):
    config = configured(schedule_name=name, warmup_epochs=3, warmup_lr=1e-6, min_lr=1e-5, cooldown_epochs=2)
    whole = rates(config)
    for step in (0, 29, 30, 100, 180, 199):
        assert rates(config, [150, step])[1] == whole[step]


def test_a_rate_that_falls_in_steps():
    found = rates(configured(schedule_name="step", decay_rate=0.1, decay_epochs=5))
    assert found == pytest.approx([1e-3 * 0.1 ** (step // 50) for step in range(200)])


def test_steps_are_steps_however_many_an_epoch_has():
    """Up over the first ten, then on the line from the highest rate at step 0 to the lowest where the run is over."""
    given = {"schedule_name": "poly", "warmup_lr": 1e-6, "min_lr": 1e-5, "curve_after_warmup": False}
    config = configured(epochs=100, steps=100, warmup_steps=10, **given)
    line = [1e-5 + (1e-3 - 1e-5) * (1 - step / 100) for step in range(101)]
    found = rates(config, range(101))  # the run is over at 100
    assert found[:10] == pytest.approx([1e-6 + (1e-3 - 1e-6) * step / 10 for step in range(10)])
    assert found[10:] == pytest.approx(line[10:])
    for steps_per_epoch in (1, 7, 1000):
        assert rates(config, [55], steps_per_epoch) == [found[55]]


@pytest.mark.parametrize(
    ("schedule", "most", "total"),
    [({"epochs": 3}, 0, 21), ({"epochs": 3}, 5, 5), ({"steps": 25}, 0, 25), ({"steps": 25}, 30, 25)],
)
def test_how_many_steps_a_run_has(schedule, most, total):
    """Epochs of 7 steps; `max_steps` can only make a run shorter."""
    config = TrainConfig(schedule=ScheduleConfig(**schedule), max_steps=most)
    run = Trainer.__new__(Trainer)
    run.config, run.order = config, BatchOrder(30, 4)
    assert run.total_steps == total


@pytest.mark.parametrize("name", ["a_swin_mini", "swinv2_mini", "a_cvt_mini", "a_mvitv2_mini"])
def test_biases_norms_and_positions_do_not_decay(name):
    model = create_model(name, num_classes=10)
    optimizer = build_optimizer(configured(weight_decay=0.05), model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, free = set(), set()
    for group in optimizer.param_groups:
        assert group["weight_decay"] in (0, 0.05)
        (decayed if group["weight_decay"] else free).update(names[id(parameter)] for parameter in group["params"])
    assert decayed | free == set(names.values())
    assert not decayed & free
    words = ("rel_pos", "relative_position", "cpb_mlp")
    positions = {each for each in names.values() if any(word in each for word in words)}
    assert bool(positions) == (name != "a_cvt_mini")
    assert positions <= free
    assert {each for each in names.values() if each.endswith("bias")} <= free
    norms = [key for key, module in model.named_modules() if isinstance(module, nn.LayerNorm | nn.BatchNorm2d)]
    assert {f"{norm}.weight" for norm in norms if f"{norm}.weight" in names.values()} <= free
    assert "head.fc.weight" in decayed


def test_earlier_layers_learn_more_slowly():
    model = create_model("swin_mini", num_classes=10)
    config = configured(layer_decay=0.5, warmup_epochs=2, warmup_lr=1e-6)
    optimizer = build_optimizer(config, model)
    schedule = build_schedule(config, optimizer, STEPS)
    layers = [model.patch_embed, *model.layers[0].blocks, *model.layers[1].blocks[:1], model.head]
    for step in (0, 5, 60):
        schedule.step_update(step)
        rate = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
        of_layers = [{rate[id(parameter)] for parameter in layer.parameters()} for layer in layers]
        found = [layer.pop() for layer in of_layers]
        assert not any(of_layers)  # one for each
        assert found[2] == pytest.approx(2 * found[1])
        assert found == sorted(found)
        assert found[-1] == pytest.approx(rates(configured(warmup_epochs=2, warmup_lr=1e-6), [step])[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arguments": {"no_such": 1}}, "optimizer 'adamw' cannot be made.*no_such"),
        ({"arguments": {"betas": [2.0, 0.9]}}, "optimizer 'adamw' cannot be made.*beta"),
    ],
)
def test_an_optimizer_takes_its_own_arguments_or_is_refused_by_name(given, message):
    optimizer = build_optimizer(configured(arguments={"betas": [0.9, 0.98], "eps": 1e-6}), nn.Linear(3, 2))
    assert (list(optimizer.defaults["betas"]), optimizer.defaults["eps"]) == ([0.9, 0.98], 1e-6)
    config = replace(configured(), optimizer=replace(OptimizerConfig(), **given))
    with pytest.raises(ValueError, match=message):
        build_optimizer(config, nn.Linear(3, 2))
