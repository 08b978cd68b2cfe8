"""Training learns: a small network on real images, by the commands a user would type."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_runs import learn, losses, same, tiny_words, weights

ROOT = Path(__file__).parents[2]


def typed(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env={**os.environ})
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_a_small_network_learns_and_stays_consistent(tmp_path):
    typed(
        *("-m", "trueshift", "train", "--model.name", "a_swin_mini", "--data.path", "sample", "--data.holdout", "0.4"),
        *("--batch_size", "32", "--schedule.epochs", "30", "--schedule.warmup_epochs", "2", "--optimizer.lr", "1e-3"),
        *("--optimizer.lr_batch_size", "0", "--evaluate.protocols", "[circular]", "--evaluate.every_epochs", "30"),
        *("--data.on_device", "yes", "--device", "cpu", "--output", str(tmp_path)),
    )
    learned = losses(tmp_path)
    assert learned[max(learned)] < 1.75 < 2.1 < learned[min(learned)]  # 2.3 is chance
    unseen = json.loads((tmp_path / "eval.json").read_text())["measured"]["circular"]
    typed(
        *("-m", "trueshift", "eval", str(tmp_path / "final"), "--data", "sample", "--protocols", "circular"),
        *("--output", str(tmp_path / "whole"), "--device", "cpu"),
    )
    whole = json.loads((tmp_path / "whole" / "eval.json").read_text())["measured"]["circular"]
    # chance is 10 %: all 400 images, and the 160 that were not shown, by the lower end of the interval
    assert whole["top1"]["low"] > 0.3
    assert unseen["top1"]["low"] > 0.12
    for measured in (whole, unseen):
        assert measured["consistency"]["rate"] == 1
        assert measured["bit_exact"]["rate"] == 1


@pytest.mark.slow
def test_torchrun_starts_a_run_and_goes_on_with_it(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trueshift", "train")
    for folder, steps in (("parts", 5), ("parts", 0), ("whole", 0)):
        typed(*torchrun, *tiny_words(tmp_path / folder, max_steps=steps, evaluate__protocols="[circular]"))
    assert same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    assert torch.isfinite(torch.tensor(list(losses(tmp_path / "whole").values()))).all()
    measured = [json.loads((tmp_path / folder / "eval.json").read_text()) for folder in ("parts", "whole")]
    assert measured[0]["measured"] == measured[1]["measured"]
    assert measured[0]["processes"] == 2


@pytest.mark.parametrize("family", ["swin", "swinv2", "cvt", "mvitv2"])
def test_padding_makes_no_difference_where_one_training_is_for_both(tmp_path, family):
    padded = family in ("cvt", "mvitv2")  # convolutions that are not circular anyway
    width = "[8, 16, 16]" if padded else "16"
    depths, heads = ("[1, 1, 1]", "[1, 1, 1]") if padded else ("[1, 1]", "[1, 2]")
    more = ", pretrained_window_sizes: [0, 0]" if family == "swinv2" else ""
    sizes = f"{{embed_dim: {width}, depths: {depths}, num_heads: {heads}{more}}}"
    tiny = {"model__name": f"{family}_mini", "model__arguments": sizes, "max_steps": 2, "evaluate__limit": 4}
    ways = (learn(tmp_path / way, model__padding=way, optimizer__lr=0.01, **tiny) for way in ("circular", "zeros"))
    assert same(*map(weights, ways)) == (not padded)
