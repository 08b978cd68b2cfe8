"""Whole runs that learn the next state of a field: what they learn, leave behind, survive and refuse."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console
from training_runs import log, losses, run_here, same, weights

import trueshift
from trueshift.cli import main
from trueshift.data import open_fields
from trueshift.train import dry_run, list_recipes, parse_arguments
from trueshift.train.data.fields import FieldReader
from trueshift.train.data.loader import DirectFeed
from trueshift.train.data.sampler import BatchOrder

FIELDS = {
    "task": "fields",
    "model__name": "a_swinv2_mini",
    "model__arguments": "{embed_dim: 8, depths: [1, 1], num_heads: [1, 1], pretrained_window_sizes: [0, 0]}",
    "fields__decoder": "{residual: true, decoder_depth: 1, kernel_size: 3}",
    "data__holdout": 0.0,
    "data__limit": 0,
    "evaluate__limit": 0,
    "batch_size": 4,
    "schedule__epochs": 2,
    "optimizer__lr": 0.01,
    "optimizer__lr_batch_size": 4,
}


@pytest.fixture(scope="session")
def flows(tmp_path_factory):
    """Smooth fields of two channels that drift to the right, off their mean."""
    folder, random = tmp_path_factory.mktemp("flows"), np.random.default_rng(0)
    columns = np.arange(32) * 2 * np.pi / 32
    for split, count in (("train", 4), ("val", 2)):
        phase = random.uniform(0, 2 * np.pi, (count, 1, 2, 1, 1)) + 0.4 * np.arange(4)[:, None, None, None]
        states = 3 + np.sin(columns + phase).repeat(32, 3)
        np.save(folder / f"{split}.npy", states.astype(np.float32))
    return folder


def learn(output, flows, **changes):
    return run_here(output, **{**FIELDS, "data__path": flows, **changes})


def test_a_run_learns_and_leaves_a_network_behind(tmp_path, flows):
    assert learn(tmp_path, flows, schedule__epochs=24, evaluate__every_epochs=12) == 0
    errors = [entry["model_relative_l2"] for entry in log(tmp_path, "test")]
    assert errors[-1] < 0.25 < 2 * np.sin(0.2)  # of a network that does nothing
    net = trueshift.from_pretrained(tmp_path / "final")
    train = open_fields(flows, "train")
    assert net.pretrained_cfg["mean"] == pytest.approx(list(train.statistics().mean))
    assert net.pretrained_cfg["size"] == [32, 32]
    x = torch.randn(2, 2, 32, 32)
    assert torch.equal(net(x.roll((3, 5), (2, 3))), net(x).roll((3, 5), (2, 3)))
    assert main(["eval", str(tmp_path / "final"), "--data", str(flows), "--output", str(tmp_path / "eval")]) == 0
    measured = json.loads((tmp_path / "eval" / "eval.json").read_text())["measured"]
    assert measured["one_step_l2"] == pytest.approx(errors[-1], rel=1e-4)
    assert measured["shift_error"] == {"1": 0}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best_skill"] == pytest.approx(1 - min(errors))
    assert summary["data"]["pairs"] == 12
    assert trueshift.from_pretrained(tmp_path / "best").config == net.config


def test_a_run_resumes_as_if_it_had_not_stopped(tmp_path, flows):
    random = {"fields__random_rolls": True, "model__grid_drop_rate": 0.5}
    assert learn(tmp_path / "whole", flows, **random) == 0
    for steps in (4, 0):  # within the second epoch
        assert learn(tmp_path / "parts", flows, max_steps=steps, **random) == 0
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_a_network_of_transformers(tmp_path, flows):
    """By name, with random grids: it learns, resumes, and what it leaves behind moves with the field."""
    arguments = "{patch_size: 2, embed_dim: 8, depths: [1, 1], num_heads: [1, 2], window_size: 4, criterion: max_norm}"
    given = {"model__name": "transformers/swinv2", "model__arguments": arguments, "model__grid_drop_rate": 0.5}
    given |= {"model__padding": "circular", "model__drop_path_rate": 0.1}
    assert learn(tmp_path / "whole", flows, **given) == 0
    for steps in (4, 0):
        assert learn(tmp_path / "parts", flows, max_steps=steps, **given) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert losses(tmp_path / "whole")[6] < losses(tmp_path / "whole")[1]
    net = trueshift.from_pretrained(tmp_path / "whole" / "final")
    assert (net.encoder.config.grid_drop_rate, net.encoder.model.config.drop_path_rate) == (0.5, 0.1)
    x = torch.randn(2, 2, 32, 32)
    assert torch.equal(net(x.roll((3, 5), (2, 3))), net(x).roll((3, 5), (2, 3)))
    start = {**given, "model__start_from": tmp_path / "whole" / "final", "max_steps": 1, "optimizer__lr": 0}
    assert learn(tmp_path / "second", flows, **start) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "second"))


def test_states_on_the_device_or_from_files_and_rolls(tmp_path, flows):
    for name, changes in {
        "file": {"data__on_device": "no"},
        "device": {"data__on_device": "yes"},
        "rolled": {"fields__random_rolls": True},
        "wide": {"fields__random_rolls": "width"},
    }.items():
        assert learn(tmp_path / name, flows, schedule__epochs=1, **changes) == 0
    assert same(weights(tmp_path / "file"), weights(tmp_path / "device"))
    assert not same(weights(tmp_path / "file"), weights(tmp_path / "rolled"))
    assert not same(weights(tmp_path / "file"), weights(tmp_path / "wide"))


def test_an_exact_network_learns_the_same_from_rolled_states(tmp_path, flows):
    """Which is why it needs no rolls: losses of the first step are equal, whatever is rolled."""
    first = []
    for rolled in (False, True):
        folder = tmp_path / str(rolled)
        assert learn(folder, flows, max_steps=1, fields__random_rolls=rolled, optimizer__lr=0) == 0
        first.append(losses(folder)[1])
    assert first[0] == pytest.approx(first[1], rel=1e-6)


@pytest.mark.parametrize("on_device", [True, False])
def test_a_state_and_the_next_are_rolled_together(flows, on_device):
    pairs = open_fields(flows, "train")
    how = pairs, pairs.statistics(), torch.device("cpu"), on_device
    still, moving, wide = (FieldReader(*how, rolls, seed=7) for rolls in (False, True, "width"))
    plain, rolled = (DirectFeed(reader.rolled, BatchOrder(len(pairs), 4)) for reader in (still, moving))
    seen = set()
    for epoch in (0, 1):
        for one, other in zip(plain.epoch(epoch), rolled.epoch(epoch), strict=True):
            offsets = moving.offsets(epoch, one.indices)
            seen |= {tuple(offset) for offset in offsets.tolist()}
            for part in ("images", "labels"):
                moved = trueshift.circular_shift(getattr(one, part), offsets, (2, 3))
                assert torch.equal(getattr(other, part), moved)
            now = pairs.statistics().normalize(torch.from_numpy(pairs.batch(one.indices)[0]))
            torch.testing.assert_close(one.images, now)
    assert len(seen) > 16  # another offset for each, in each epoch
    at = np.arange(12)
    assert torch.equal(wide.offsets(0, at), moving.offsets(0, at) * torch.tensor([0, 1]))  # columns alone
    resumed = next(iter(rolled.epoch(1, first_step=2)))
    assert torch.equal(resumed.images, list(rolled.epoch(1))[2].images)


def test_one_file_keeps_trajectories_for_measuring(tmp_path, flows):
    assert learn(tmp_path, flows / "train.npy", data__holdout=0.25, max_steps=1) == 0
    assert log(tmp_path, "test")[-1]["model_images"] == 3


def test_a_run_starts_from_the_weights_of_another(tmp_path, flows):
    """Also an adaptive network from its ordinary twin."""
    assert learn(tmp_path / "first", flows, max_steps=1, model__name="swinv2_mini") == 0
    start = tmp_path / "first" / "final"
    assert learn(tmp_path / "second", flows, max_steps=1, model__start_from=start, optimizer__lr=0) == 0
    assert same(weights(tmp_path / "first"), weights(tmp_path / "second"))


def test_recipes_can_be_tried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (recipe for recipe in list_recipes() if recipe.startswith("fields/")):
        arguments = FIELDS["model__arguments"].replace("{", "{circular: width, " if "shallow_water" in name else "{")
        words = ["--config", name, "--model.arguments", arguments, "--device", "cpu"]
        assert dry_run(parse_arguments(words).config, Console(quiet=True)) == 0


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "classification"}, "fields is for fields: needs --task fields"),
        ({"augment__flip": 0.1}, "needs --fields.random_rolls here"),
        ({"segmentation__fit": "pad"}, "needs --task segmentation"),
        ({"data__kind": "camvid"}, "has no fields"),
        ({"data__img_size": 64}, "leave them out"),
        ({"model__pretrained": True}, "published weights are for images"),
        ({"evaluate__protocols": "[circular]"}, "are for images"),
        ({"fields__decoder": "{channels: 3}"}, "fields.decoder has channels: needs some of residual"),
        ({"fields__random_rolls": True, "model__arguments": "{circular: width}"}, "rolls rows: needs width"),
        ({"cuda_graph": True}, "cuda_graph works on GPUs only"),
        ({"model__name": "resnet18"}, "resnet18"),
        ({"model__name": "transformers/vit"}, "needs one of transformers/swin, transformers/swinv2"),
        ({"model__name": "transformers/swin", "model__arguments": "{dim: 8}"}, "does not know dim"),
        (
            {"model__name": "transformers/swin", "model__arguments": "{}", "model__grid_drop_rate": 0.5},
            "grid_drop_rate with a fixed grid",
        ),
        ({"data__path": "nowhere"}, "there are no fields at nowhere"),
        ({"data__holdout": 0.9}, "leaves none"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, flows, changes, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        learn(tmp_path / "run", flows, **changes)
    assert not (tmp_path / "run").exists()


def test_fields_that_do_not_fit_are_refused(tmp_path, flows):
    states = np.load(flows / "train.npy")

    def refused(message, train, test):
        np.save(tmp_path / "train.npy", train)
        np.save(tmp_path / "test.npy", test)
        with pytest.raises(ValueError, match=message):
            learn(tmp_path / "run", tmp_path)

    refused("the same fields to learn from and to measure on", states, states)
    refused("needs the same channels and size", states, states[1:, :, :1])
    refused("needs a multiple of", states[..., :31], states[1:, ..., :31])
    refused("holds NaN", states, np.full_like(states, np.nan))
    refused("fewer than a batch", states[:1, :3], states[1:])
