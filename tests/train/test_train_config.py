"""Configurations: every value is explained, the last one given wins, and impossible ones are refused by name."""

import inspect
import re
from dataclasses import fields, is_dataclass, replace
from typing import get_args, get_type_hints

import pytest

from trueshift.train import TrainConfig, config, parse_arguments
from trueshift.train.checkpoint import differences
from trueshift.train.config import ModelConfig, ScheduleConfig, SegmentationConfig
from trueshift.train.recipe import read_recipe


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe; its name is what `--config` takes."""

    def write(text, name="mine"):
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="latin-1")
        return str(file)

    return write


def parsed(*words):
    return parse_arguments(words).config


def test_every_value_is_explained():
    kinds = [TrainConfig]
    for kind in kinds:
        explained = re.findall(r"^    (\w+): \S", inspect.getdoc(kind).partition("Args:\n")[2], re.MULTILINE)
        assert explained == [field.name for field in fields(kind)]
        kinds += filter(is_dataclass, get_type_hints(kind).values())


def test_every_dataset_can_be_named():
    assert {*config.CLASSES, "any"} == set(get_args(get_type_hints(config.DataConfig)["kind"]))


def test_options_win_over_later_recipes_over_earlier_ones_over_bases(recipe):
    base = "batch_size: 1\nseed: 1\naccumulate: 1\noptimizer: {lr: 1, weight_decay: 1, arguments: {eps: 1, betas: 1}}"
    recipe(base, "below")
    recipe("seed: 2\noptimizer: {lr: 2}", "second_base")
    first = recipe("base: [below, second_base]\naccumulate: 3\noptimizer: {weight_decay: 3, arguments: {eps: 3}}", "a")
    second = recipe("optimizer: {weight_decay: 4}\nmax_steps: 4", "b")
    found = parsed("--config", first, "--config", second, "--max_steps", "5", "--optimizer.arguments.eps", "5")
    assert (found.batch_size, found.seed, found.accumulate, found.max_steps) == (1, 2, 3, 5)
    assert (found.optimizer.lr, found.optimizer.weight_decay) == (2, 4)
    assert found.optimizer.arguments == {"eps": 5, "betas": 1}
    assert found.schedule == ScheduleConfig()
    # wherever the options stand
    assert parsed("--max_steps", "5", "--config", first, "--optimizer.arguments.eps", "5", "--config", second) == found


def test_a_base_is_found_beside_the_recipe_that_names_it(recipe):
    recipe("batch_size: 7", "inside/below")
    for base in ("below", "below.yaml", "../inside/below.yaml", "./below"):
        assert read_recipe(recipe(f"base: {base}", "inside/above")) == {"batch_size": 7}
    assert read_recipe(recipe("base: cifar10/a_swin_tiny_circular")) == read_recipe("cifar10/a_swin_tiny_circular")
    assert read_recipe(recipe("base:\nbatch_size: 3")) == {"batch_size": 3}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--config", "ablations/a_swin_tiny_no_a_wsa", "--optimizer.lr", "1e-7"],
        ["--augment.crop_scale", "[0.08, 1]", "--evaluate.protocols", "[circular, flips]"],
        ["--config", "ade20k/a_swin_tiny_standard", "--segmentation.augment.crop", "[224, 448]"],
        ["--optimizer.arguments", "{betas: [0.9, 0.98], eps: 1e-6}", "--log.wandb", "on", "--output", "1e5"],
    ],
)
def test_a_configuration_that_is_shown_is_a_recipe_for_itself(recipe, words):
    asked = parse_arguments([*words, "--print_config"])
    assert (asked.print_config, asked.dry_run) == (True, False)
    assert parse_arguments([*words, "--dry-run"]) == replace(asked, print_config=False, dry_run=True)
    assert parsed("--config", recipe(asked.text)) == asked.config


MEANT = {
    **dict.fromkeys(["1e-4", "1E-4", "1.0e-4", ".1e-3", "1.e-4", "0.0001", "+1e-4"], 1e-4),
    **{word: word for word in ("e5", "1e", "runs/1e-4", "no", "off")},
    **{"'1e-4'": "1e-4", "12": 12, "false": False},
}


def test_words_and_numbers_in_a_recipe(recipe):
    for written, meant in MEANT.items():
        found = read_recipe(recipe(f"a: {{b: {written}}}"))["a"]["b"]
        assert (type(found), found) == (type(meant), meant)
    assert parsed("--config", recipe("data: {on_device: no}")).data.on_device == "no"


def test_help_lists_every_value(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("--config", "--dry-run", "--optimizer.lr", "the highest learning rate, at lr_batch_size images in"):
        assert text in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_siz: 3", "no value is called batch_siz: did you mean batch_size"),
        ("optimiser: {lr: 3}", "no value is called optimiser.lr: did you mean optimizer.lr"),
        ("optimizer: {learning_rate: 3}", "no value is called optimizer.learning_rate: .*--help"),
        ("precision: fp8", "precision.*'float32', 'bf16', 'fp16'.*fp8"),
        ("optimizer: 5", "optimizer is 5: needs values by name, such as name"),
        ("optimizer:", "optimizer is empty"),
        ("optimizer: {lr: }", "optimizer.lr is empty"),
        ("base: mine", "mine.yaml is its own base"),
        ("base: [x: :", r"mine.yaml cannot be read as a recipe: [^\n]*$"),
        ("seed: \xff\xfe", "mine.yaml cannot be read as a recipe: "),
        ("base: 3", "base is 3: needs the name of a recipe, or several"),
        ("evaluate: {protocols: circular}", r"evaluate.protocols.*Expected a list, as \[a, b\]. Got value: circular"),
        ("optimizer: {lr: fast}", "optimizer.lr.*Expected a number. Got value: fast"),
        ("batch_size: 1.5", "batch_size.*Expected a whole number. Got value: 1.5"),
        ("seed: 1\noptimizer: {lr: 1}\nseed: 2", "mine.yaml cannot be read as a recipe: seed is given twice.*line 3"),
        ("model: {arguments: {anchor: true, anchor: false}}", "anchor is given twice"),
        ("- 1", "mine.yaml holds a list: needs values by name"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused_by_name(recipe, text, message):
    with pytest.raises(ValueError, match=message):
        parsed("--config", recipe(text))


def pixels(name, value):
    return ["--task", "segmentation", f"--segmentation.{name}", value]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch_siz", "3"], "--batch_siz 3.*did you mean --batch_size"),
        (["--lr", "3"], "--lr 3.*did you mean --optimizer.lr"),
        (["--batch", "64"], "--batch"),  # no part of a name stands for it
        (["--batch_size", "null"], "batch_size"),
        (["--config"], "--config: expected one argument"),
        (["--dry_run=yes"], "--dry_run: ignored explicit argument 'yes'"),
        (["cifar10/a_swin_tiny_circular"], "cifar10/a_swin_tiny_circular"),
        (pixels("augment.scale_range", "[2, 0.5]"), "scale_range .*needs the least factor first"),
        (pixels("augment.crop", "[0, 32]"), "crop .*needs a positive height and width"),
        (pixels("augment.max_class_share", "0"), "max_class_share is 0.0: needs a part of 1, above 0"),
        (pixels("scale", "[2048]"), "segmentation.scale"),
        (["--task", "detection"], "task.*'classification', 'segmentation'.*detection"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(words, message):
    with pytest.raises(ValueError, match=message):
        parsed(*words)


def test_a_recipe_that_is_not_there(recipe):
    for name, message in (
        ("cifar10/a_swin_tiny_circlar", "did you mean cifar10/a_swin_tiny_circular"),
        ("nothing/like/it.yaml", "needs a file, or one of `trueshift recipes`"),
    ):
        for given in (name, recipe(f"base: {name}")):
            with pytest.raises(FileNotFoundError, match=f"there is no recipe {name}: {message}"):
                parsed("--config", given)


SCENES = {"task": "segmentation"}


def made(values):
    """A configuration with values at dotted names."""
    sections, plain = {}, TrainConfig()
    for name, value in values.items():
        section, _, last = name.rpartition(".")
        sections.setdefault(section, {})[last] = value
    own = sections.pop("", {})
    return replace(plain, **own, **{name: replace(getattr(plain, name), **given) for name, given in sections.items()})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0: needs at least 1"),
        ({"schedule.warmup_lr": -1.0}, "schedule.warmup_lr is -1.0: needs at least 0"),
        ({"data.img_size": 0}, "data.img_size is 0: needs at least 1"),
        ({"seed": -1}, "seed is -1: needs at least 0"),
        ({"optimizer.lr": float("nan")}, "optimizer.lr is nan: needs at least 0"),
        ({"seed": 1 << 63}, "needs less than 2**63"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0: needs at least 0 and less than 1"),
        ({"model.drop_path_rate": 3.0}, "model.drop_path_rate is 3.0: needs a part of 1"),
        ({"data.holdout": 1.0}, "data.holdout is 1.0: needs a part of the images"),
        ({"augment.crop_scale": (0.8, 0.2)}, "augment.crop_scale is (0.8, 0.2)"),
        ({"augment.crop_scale": (0.0, 1.0)}, "augment.crop_scale"),
        ({"augment.flip": 50.0}, "augment.flip is 50.0: needs a part of 1"),
        ({"augment.consistency": 0.5}, "augment.consistency is 0.5: needs random crops to compare"),
        ({"augment.consistency": 0.5, "augment.circular_shift": True}, "needs random crops to compare"),
        ({"distill.temperature": 0.0}, "distill.temperature is 0.0: needs more than 0"),
        ({"task": "fields", "distill.teacher": "swin_mini.cifar10"}, "distill.teacher is for classification"),
        ({"model.arguments": {"grid_drop_rate": 0.5}}, "model.arguments.grid_drop_rate: needs model.grid_drop_rate"),
        ({"model.arguments": {"img_size": 64}}, "model.arguments.img_size: needs data.img_size instead"),
        ({"model.arguments": {"num_classes": 3}}, "model.arguments.num_classes follows from the task and its data"),
        ({"model.arguments": {"global_pool": ""}}, "model.arguments.global_pool '': needs e.g. avg"),
        ({"schedule.epochs": 5, "schedule.warmup_epochs": 6.0}, "do not fit into 5 epochs"),
        ({"schedule.epochs": 5, "schedule.cooldown_epochs": 5}, "do not fit into 5 epochs"),
        ({"schedule.warmup_steps": 5}, "warmup_steps goes with schedule.steps: needs warmup_epochs here"),
        ({"schedule.steps": 9, "schedule.warmup_epochs": 1.0}, "go with epochs: needs warmup_steps"),
        ({"schedule.steps": 9, "schedule.warmup_steps": 9}, "warmup_steps 9 does not fit into 9 steps"),
        ({"schedule.steps": 9, "schedule.epochs": 3}, "schedule.steps 9 and schedule.epochs 3: needs one of them"),
        ({"schedule.steps": 9, "schedule.name": "step"}, "counts epochs between its steps: needs e.g. poly"),
        ({**SCENES, "augment.flip": 0.3}, "augment is for classification: needs --segmentation.augment"),
        ({**SCENES, "data.kind": "cifar10"}, "data.kind cifar10 has no masks: needs ade20k, cityscapes, camvid or any"),
        ({**SCENES, "data.crop_pct": 0.9}, "data.crop_pct is for classification"),
        ({**SCENES, "data.on_device": "yes"}, "data.on_device is for classification"),
        ({**SCENES, "data.download": True}, "data.download: images with masks are not downloaded"),
        ({"segmentation.fit": "pad"}, "segmentation is for images with masks: needs --task segmentation"),
        ({"data.kind": "camvid"}, "data.kind camvid is for images with masks: needs --task segmentation"),
    ],
)
def test_values_that_make_no_training_are_refused(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        made(values)


def test_values_at_the_edge_are_taken():
    assert made({"schedule.steps": 2, "schedule.warmup_steps": 1, "schedule.name": "poly"})
    assert made({"task": "segmentation", "data.kind": "ade20k", "segmentation.augment": SegmentationConfig().augment})
    assert made({"schedule.epochs": 5, "schedule.warmup_epochs": 5.0, "schedule.curve_after_warmup": False})
    assert made({"schedule.epochs": 5, "schedule.warmup_epochs": 1.5, "schedule.cooldown_epochs": 3})
    assert made({"augment.flip": 1.0, "augment.crop_scale": (1.0, 1.0), "optimizer.clip_grad": 0.0, "seed": 0})


def test_what_makes_another_training_is_reported_in_words():
    plain = TrainConfig()
    changed = made({"augment.crop_scale": (0.5, 1.0), "seed": 3, "output": "elsewhere", "evaluate.limit": 7})
    changed = replace(changed, model=ModelConfig(arguments={"criterion": {"merge": "fixed"}})).to_dict()
    there, back = differences(plain.to_dict(), changed), differences(changed, plain.to_dict())
    assert there == [
        "augment.crop_scale: None before, now [0.5, 1.0]",
        "model.arguments.criterion.merge: None before, now fixed",
        "seed: 0 before, now 3",
    ]
    assert back[2] == "seed: 3 before, now 0"
    # a checkpoint from before a value was added had its default
    before = plain.to_dict()
    del before["augment"]["consistency"]
    assert differences(before, plain.to_dict()) == []
    changed = made({"augment.consistency": 1.0, "augment.pad_crop": 4}).to_dict()
    assert differences(before, changed)[0] == "augment.consistency: 0.0 before, now 1.0"
