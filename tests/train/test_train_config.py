"""Configurations: every value is explained, the last one given wins, and impossible ones are refused by name."""

import inspect
import re
from dataclasses import fields, is_dataclass, replace
from typing import get_args, get_type_hints

import pytest

from trueshift.train import TrainConfig, config, dense_config, parse_arguments
from trueshift.train.checkpoint import differences
from trueshift.train.config import AugmentConfig, DataConfig, ModelConfig, ScheduleConfig, SegmentationConfig
from trueshift.train.recipe import overlaid, read_recipe

CLASSES = [kind for part in (config, dense_config) for kind in vars(part).values() if inspect.isclass(kind)]
DATACLASSES = [kind for kind in dict.fromkeys(CLASSES) if is_dataclass(kind)]


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


@pytest.mark.parametrize("kind", DATACLASSES, ids=lambda kind: kind.__name__)
def test_every_value_is_explained(kind):
    explained = re.findall(r"^    (\w+): \S", inspect.getdoc(kind).partition("Args:\n")[2], re.MULTILINE)
    assert explained == [field.name for field in fields(kind)]


def test_all_parts_of_a_configuration_are_looked_at():
    def parts(kind):
        return {kind}.union(*(parts(hint) for hint in get_type_hints(kind).values() if is_dataclass(hint)))

    assert len(DATACLASSES) == 13
    assert set(DATACLASSES) == parts(TrainConfig)
    assert {*config.CLASSES, "any"} == set(get_args(get_type_hints(DataConfig)["kind"]))  # every dataset can be named


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


def test_a_value_over_a_section_and_the_other_way_round():
    assert overlaid({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert overlaid({"a": {"b": 1}}, {"a": 3}) == {"a": 3}
    assert overlaid({"a": 3}, {"a": {"b": 1}}) == {"a": {"b": 1}}
    below = {"a": {"b": 1}}
    overlaid(below, {"a": {"b": 2}})
    assert below == {"a": {"b": 1}}


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
        ["--config", "imagenet/mvitv2_tiny_standard"],
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
    **{word: word for word in ("rand-m9-mstd0.5-inc1", "e5", "1e", "runs/1e-4", "no", "off")},
    **{"'1e-4'": "1e-4", "12": 12, "false": False},
}


@pytest.mark.parametrize(("written", "meant"), MEANT.items())
def test_words_and_numbers_in_a_recipe(recipe, written, meant):
    for text in (f"a: {{b: {written}}}", f"a:\n  b: {written}"):
        found = read_recipe(recipe(text))["a"]["b"]
        assert (type(found), found) == (type(meant), meant)


def test_no_is_a_word_for_an_option_too(recipe):
    assert parsed("--config", recipe("data: {on_device: no}")).data.on_device == "no"


def test_help_lists_every_value(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name in ("--optimizer.lr", "--augment.circular_shift", "--config", "--dry-run", "--resume"):
        assert name in shown
    assert "the highest learning rate, at lr_batch_size images in a step" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_siz: 3", "no value is called batch_siz: did you mean batch_size"),
        ("optimiser: {lr: 3}", "no value is called optimiser.lr: did you mean optimizer.lr"),
        ("optimizer: {learning_rate: 3}", "no value is called optimizer.learning_rate: .*--help"),
        ("lr: 3", "no value is called lr: did you mean optimizer.lr"),
        ("data: {workers: 1.5}", "data.workers.*1.5"),
        ("precision: fp8", "precision.*'float32', 'bf16', 'fp16'.*fp8"),
        ("schedule: {name: multistep}", "schedule.name.*multistep"),
        ("augment: {crop_scale: 0.5}", "augment.crop_scale"),
        ("optimizer: 5", "optimizer is 5: needs values by name, such as name"),
        ("optimizer:", "optimizer is empty"),
        ("optimizer: {lr: }", "optimizer.lr is empty"),
        ("batch_size:", "batch_size is empty"),
        ("base: mine", "mine.yaml is its own base"),
        ("base: circle", "is its own base"),
        ("base: [x: :", r"mine.yaml cannot be read as a recipe: [^\n]*$"),
        ("seed: \xff\xfe", "mine.yaml cannot be read as a recipe: "),
        ("base: 3", "base is 3: needs the name of a recipe, or several"),
        ("base: [3]", r"base is \[3\]: needs the name of a recipe, or several"),
        ("evaluate: {protocols: circular}", r"evaluate.protocols.*Expected a list, as \[a, b\]. Got value: circular"),
        ("optimizer: {lr: fast}", "optimizer.lr.*Expected a number. Got value: fast"),
        ("batch_size: 1.5", "batch_size.*Expected a whole number. Got value: 1.5"),
        ("seed: 1\noptimizer: {lr: 1}\nseed: 2", "mine.yaml cannot be read as a recipe: seed is given twice.*line 3"),
        ("model: {arguments: {anchor: true, anchor: false}}", "anchor is given twice"),
        ("- 1", "mine.yaml holds a list: needs values by name"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused_by_name(recipe, text, message):
    recipe("base: mine", "circle")
    with pytest.raises(ValueError, match=message):
        parsed("--config", recipe(text))


def pixels(name, value):
    return ["--task", "segmentation", f"--segmentation.{name}", value]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch_siz", "3"], "--batch_siz 3.*did you mean --batch_size"),
        (["--optimizer.lrr=3"], "--optimizer.lrr=3.*did you mean --optimizer.lr"),
        (["--lr", "3"], "--lr 3.*did you mean --optimizer.lr"),
        (["--batch", "64"], "--batch"),  # no part of a name stands for it
        (["--batch_size", "many"], "batch_size.*many"),
        (["--batch_size", "null"], "batch_size"),
        (["--config"], "--config: expected one argument"),
        (["--dry_run=yes"], "--dry_run: ignored explicit argument 'yes'"),
        (["cifar10/a_swin_tiny_circular"], "cifar10/a_swin_tiny_circular"),
        (pixels("augment.scale_range", "[2, 0.5]"), "scale_range .*needs the least factor first"),
        (pixels("augment.scale_range", "[0, 0.5]"), "scale_range .*needs the least factor first, above 0"),
        (pixels("augment.crop", "[0, 32]"), "crop .*needs a positive height and width"),
        (pixels("augment.crop", "32"), "segmentation.augment.crop"),
        (pixels("augment.flip", "2"), "augment.flip is 2.0: needs a part of 1"),
        (pixels("augment.max_class_share", "0"), "max_class_share is 0.0: needs a part of 1, above 0"),
        (pixels("augment.photometric", "perhaps"), "segmentation.augment.photometric.*perhaps"),
        (pixels("fit", "stretch"), "segmentation.fit.*'resize', 'pad'.*stretch"),
        (pixels("scale", "[2048]"), "segmentation.scale"),
        (pixels("decoder", "512"), "segmentation.decoder"),
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


def made(values):
    """A configuration with values at dotted names."""
    sections, plain = {}, TrainConfig()
    for name, value in values.items():
        section, _, last = name.rpartition(".")
        sections.setdefault(section, {})[last] = value
    own = sections.pop("", {})
    return replace(plain, **own, **{name: replace(getattr(plain, name), **given) for name, given in sections.items()})


AT_LEAST = {
    1: "batch_size accumulate schedule.epochs evaluate.every_epochs evaluate.batch_size checkpoint.keep "
    "log.every_steps data.img_size",
    0: "checkpoint.every_steps data.workers data.limit seed max_steps schedule.warmup_epochs schedule.cooldown_epochs "
    "schedule.warmup_lr schedule.min_lr schedule.steps schedule.warmup_steps optimizer.lr_batch_size "
    "optimizer.clip_grad optimizer.lr augment.mixup augment.cutmix augment.color_jitter",
}
TOO_LOW = [
    ({name: least - 1}, f"{name} is {least - 1}: needs at least {least}")
    for least, names in AT_LEAST.items()
    for name in names.split()
]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *TOO_LOW,
        ({"optimizer.lr": float("nan")}, "optimizer.lr is nan: needs at least 0"),
        ({"optimizer.weight_decay": -0.1}, "optimizer.weight_decay is -0.1: needs at least 0"),
        ({"seed": 1 << 63}, "needs less than 2**63"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0: needs at least 0 and less than 1"),
        ({"model.drop_path_rate": 3.0}, "model.drop_path_rate is 3.0: needs a part of 1"),
        ({"data.holdout": 1.0}, "data.holdout is 1.0: needs a part of the images"),
        ({"augment.crop_scale": (0.8, 0.2)}, "augment.crop_scale is (0.8, 0.2)"),
        ({"augment.crop_scale": (0.0, 1.0)}, "augment.crop_scale"),
        ({"augment.flip": 50.0}, "augment.flip is 50.0: needs a part of 1"),
        ({"augment.erasing": -0.1}, "augment.erasing is -0.1"),
        ({"augment.label_smoothing": 1.5}, "augment.label_smoothing is 1.5"),
        ({"augment.consistency": -1.0, "augment.pad_crop": 4}, "augment.consistency is -1.0: needs at least 0"),
        ({"augment.consistency": 0.5}, "augment.consistency is 0.5: needs random crops to compare"),
        ({"augment.consistency": 0.5, "augment.circular_shift": True}, "needs random crops to compare"),
        ({"distill.temperature": 0.0}, "distill.temperature is 0.0: needs more than 0"),
        ({"distill.weight": 1.5}, "distill.weight is 1.5: needs a part of 1"),
        ({"task": "fields", "distill.teacher": "swin_mini.cifar10"}, "distill.teacher is for classification"),
        ({"model.arguments": {"grid_drop_rate": 0.5}}, "model.arguments.grid_drop_rate: needs model.grid_drop_rate"),
        ({"model.arguments": {"img_size": 64}}, "model.arguments.img_size: needs data.img_size instead"),
        ({"model.arguments": {"num_classes": 3}}, "model.arguments.num_classes follows from the task and its data"),
        ({"model.arguments": {"features_only": True}}, "model.arguments.features_only follows from the task"),
        ({"model.arguments": {"global_pool": ""}}, "model.arguments.global_pool '': needs e.g. avg"),
        # epochs
        ({"schedule.epochs": 5, "schedule.warmup_epochs": 6.0}, "do not fit into 5 epochs"),
        ({"schedule.epochs": 5, "schedule.warmup_epochs": 3.0, "schedule.cooldown_epochs": 3}, "do not fit"),
        ({"schedule.epochs": 5, "schedule.cooldown_epochs": 5}, "do not fit into 5 epochs"),
        # epochs or steps
        ({"schedule.warmup_steps": 5}, "warmup_steps goes with schedule.steps: needs warmup_epochs here"),
        ({"schedule.steps": 9, "schedule.warmup_epochs": 1.0}, "go with epochs: needs warmup_steps"),
        ({"schedule.steps": 9, "schedule.cooldown_epochs": 1}, "go with epochs: needs warmup_steps"),
        ({"schedule.steps": 9, "schedule.warmup_steps": 9}, "warmup_steps 9 does not fit into 9 steps"),
        ({"schedule.steps": 9, "schedule.epochs": 3}, "schedule.steps 9 and schedule.epochs 3: needs one of them"),
        ({"schedule.steps": 9, "schedule.name": "step"}, "counts epochs between its steps: needs e.g. poly"),
    ],
)
def test_values_that_make_no_training_are_refused(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        made(values)


IMAGES, SCENES = "classification", "segmentation"


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        (SCENES, {"augment.flip": 0.3}, "augment is for classification: needs --segmentation.augment"),
        (SCENES, {"augment.mixup": 0.8}, "augment is for classification"),
        (SCENES, {"data.kind": "cifar10"}, "data.kind cifar10 has no masks: needs ade20k, cityscapes, camvid or any"),
        (SCENES, {"data.crop_pct": 0.9}, "data.crop_pct is for classification"),
        (SCENES, {"data.on_device": "yes"}, "data.on_device is for classification"),
        (SCENES, {"data.download": True}, "data.download: images with masks are not downloaded"),
        (IMAGES, {"segmentation.fit": "pad"}, "segmentation is for images with masks: needs --task segmentation"),
        (IMAGES, {"data.kind": "camvid"}, "data.kind camvid is for images with masks: needs --task segmentation"),
    ],
)
def test_values_of_the_other_task_are_refused(task, values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        made({"task": task, **values})
    assert made({"task": IMAGES if task == SCENES else SCENES, **values})


def test_values_at_the_edge_are_taken():
    assert made({"schedule.steps": 2, "schedule.warmup_steps": 1, "schedule.name": "poly"})
    assert made({"task": "segmentation", "data.kind": "ade20k", "segmentation.augment": SegmentationConfig().augment})
    assert made({"schedule.epochs": 5, "schedule.warmup_epochs": 5.0, "schedule.curve_after_warmup": False})
    assert made({"schedule.epochs": 5, "schedule.warmup_epochs": 1.5, "schedule.cooldown_epochs": 3})
    assert made({"augment.flip": 1.0, "augment.crop_scale": (1.0, 1.0), "optimizer.clip_grad": 0.0, "seed": 0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 3}, ["seed: 0 before, now 3"]),
        ({"data": DataConfig(img_size=32)}, ["data.img_size: None before, now 32"]),
        (
            {"augment": AugmentConfig(crop_scale=(0.5, 1.0), flip=0.0)},
            ["augment.crop_scale: None before, now [0.5, 1.0]", "augment.flip: 0.5 before, now 0.0"],
        ),
        (
            {"model": ModelConfig(arguments={"anchor": False, "criterion": {"merge": "fixed"}})},
            [
                "model.arguments.anchor: None before, now False",
                "model.arguments.criterion.merge: None before, now fixed",
            ],
        ),
    ],
)
def test_what_makes_another_training_is_reported_in_words(changes, message):
    assert differences(TrainConfig().to_dict(), replace(TrainConfig(), **changes).to_dict()) == message
    back = [f"{line.split(':')[0]}: {line.split('now ')[1]} before, now" for line in message]
    other = differences(replace(TrainConfig(), **changes).to_dict(), TrainConfig().to_dict())
    assert [line.rsplit(" ", 1)[0] for line in other] == back


def test_a_checkpoint_from_before_a_value_was_added_had_its_default():
    before = TrainConfig().to_dict()
    del before["augment"]["consistency"]
    assert differences(before, TrainConfig().to_dict()) == []
    changed = made({"augment.consistency": 1.0, "augment.pad_crop": 4}).to_dict()
    wanted = ["augment.consistency: 0.0 before, now 1.0", "augment.pad_crop: 0 before, now 4"]
    assert differences(before, changed) == wanted


def test_every_value_that_is_not_free_counts():
    """No field can be forgotten: one more, and it makes another training until it is said to be without effect."""
    plain = TrainConfig().to_dict()
    free = {"output", "resume", "device", "log", "checkpoint", "evaluate", "grad_checkpointing", "compile"}
    free |= {"cuda_graph", "max_steps"}
    free |= {"model.start_from", "data.path", "data.download", "data.workers", "data.on_device"}
    for name, value in plain.items():
        for inner in value if isinstance(value, dict) else [None]:
            changed = {**plain, name: {**value, inner: "other"} if inner else "other"}
            without_effect = name in free or f"{name}.{inner}" in free
            assert bool(differences(plain, changed)) is not without_effect, (name, inner)
