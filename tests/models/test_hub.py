"""Folders that timm and the Hub understand; nothing is lost when something goes wrong."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import timm
import timm.data
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

import trueshift as ts
from trueshift.eval import load_eval_model
from trueshift.models import hub as saving

IMAGE = torch.randn(1, 3, 32, 32)


@pytest.mark.parametrize("name", ts.list_models("*mini*"))
@torch.no_grad()
def test_saved_and_loaded_by_us_and_by_timm(name, tmp_path):
    model = ts.create_model(name, num_classes=7, drop_path_rate=0.3).eval()
    model.save_pretrained(tmp_path, label_names=list("abcdefg"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    again = type(model).from_pretrained(str(tmp_path))
    assert type(again) is type(model)
    assert replace(again.config, positions=None) == model.config  # which is written down for an MViTv2
    assert torch.equal(again(IMAGE), model(IMAGE))
    by_timm = ts.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()  # passed on to timm
    assert torch.equal(by_timm(IMAGE), model(IMAGE))


@torch.no_grad()
def test_what_differs_from_the_variant_is_kept(tmp_path):
    changed = {"criterion": {"align": ts.MaxNorm(4)}, "anchor": False, "feature_frame": "pixel"}
    model = ts.create_model("a_swin_mini", img_size=(32, 64), embed_dim=32, **changed).eval()
    model.reset_classifier(3)
    again = ts.from_pretrained(model.save_pretrained(tmp_path))
    assert again.config.arguments().items() >= {**changed, "criterion": model.config.described()}.items()
    wide = torch.randn(1, 3, 32, 64)
    assert torch.equal(again(wide), model(wide))
    assert ts.from_pretrained(tmp_path, anchor=True).patch_embed.anchor
    source = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), num_heads=(2, 2), img_size=56)
    adapted, image = ts.adapt(source).eval(), torch.randn(1, 3, 56, 56)
    assert torch.equal(ts.from_pretrained(adapted.save_pretrained(tmp_path))(image), adapted(image))
    assert input_size_in(tmp_path) == [3, 56, 56]


SMALL_SWIN = {"img_size": 56, "embed_dim": 24, "depths": (1, 1), "num_heads": (2, 2)}
SMALL_MVIT = {"img_size": 64, "depths": (1, 1, 1, 1)}


@pytest.mark.parametrize(
    ("name", "arguments", "theirs"),
    [
        ("mvitv2_tiny", {"img_size": 64}, True),
        ("mvitv2_tiny", SMALL_MVIT, False),  # timm's takes no other depths
        ("swin_tiny", SMALL_SWIN, True),
        ("swin_tiny", {**SMALL_SWIN, "anchor": True}, False),  # timm's would take that, and do nothing
    ],
)
@torch.no_grad()
def test_timm_loads_the_same_network_under_its_own_name_or_ours(name, arguments, theirs, tmp_path):
    model = ts.create_model(name, num_classes=5, **arguments).eval()
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["architecture"]
    assert saved.startswith("trueshift_") == (not theirs)
    by_timm = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert type(by_timm).__module__.startswith("timm." if theirs else "trueshift.")
    image = torch.randn(1, 3, *model.config.size)
    torch.testing.assert_close(by_timm(image), model(image), rtol=0, atol=1e-5 if theirs else 0)
    again = ts.from_pretrained(tmp_path)
    assert torch.equal(again(image), model(image))
    assert again.architecture == model.architecture
    assert type(load_eval_model(str(tmp_path)).module) is type(model)


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    ts.create_model("a_swin_mini").save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(saving, "json_text", full_disk)
    with pytest.raises(OSError, match="No space left"):
        ts.create_model("a_swin_mini").save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def write(text):
    return lambda folder: (folder / "config.json").write_text(text)


def halve(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def exchange(folder):
    state = load_file(folder / "model.safetensors")
    del state["norm.bias"]
    save_file({**state, "norm.extra": torch.ones(1), "head.fc.bias": torch.ones(99)}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), FileNotFoundError, r"config\.json is missing"),
        (write("{}"), ValueError, "not the configuration of a model"),
        (write("{"), ValueError, "not the configuration of a model"),
        (write('{"architecture": "a_swin_tinny"}'), ValueError, "did you mean"),
        (halve, ValueError, "not a complete safetensors file"),
        (exchange, ValueError, r"missing norm\.bias; unknown norm\.extra; head\.fc\.bias .*\(99,\), needs \(10,\)"),
    ],
)
def test_broken_folders_are_refused_in_words(tmp_path, damage, error, message):
    damage(ts.create_model("a_swin_mini").save_pretrained(tmp_path))
    with pytest.raises(error, match=message):
        ts.from_pretrained(tmp_path)


def test_places_that_are_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="needs a folder"):
        ts.create_model("a_swin_mini").save_pretrained(tmp_path / "file")
    with pytest.raises(TypeError, match="holds a Swin, not a Cvt"):
        ts.models.Cvt.from_pretrained(ts.create_model("a_swin_mini").save_pretrained(tmp_path))
    with pytest.raises(FileNotFoundError, match="neither a folder nor a repository"):
        ts.from_pretrained(tmp_path / "nowhere" / "at" / "all")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda model: model.prune_intermediate_layers((0, 1)), r"missing layers\.2\..*: needs reset_classifier"),
        (lambda model: model.prune_intermediate_layers(3, prune_norm=True), r"missing norm\.bias, norm\.weight"),
        (lambda model: setattr(model.head, "fc", torch.nn.Linear(256, 3)), r"head\.fc\.weight has shape \(3, 256\)"),
    ],
    ids=["stages", "norm", "classifier"],
)
def test_what_could_not_be_loaded_is_not_saved(change, problem, tmp_path):
    model = ts.create_model("a_swin_mini")
    change(model)
    with pytest.raises(ValueError, match=problem):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


class Smallest(ts.MaxNorm):
    """Chooses otherwise than what it is derived from."""

    def scores(self, candidates):
        return -super().scores(candidates)


@pytest.mark.parametrize(
    "criterion",
    [lambda dim: ts.MaxNorm(), {"merge": Smallest()}, type("Own", (ts.InputNorm,), {})()],
    ids=["function", "by place", "input_norm"],
)
def test_a_criterion_without_a_name_is_refused_before_anything_is_written(tmp_path, criterion):
    model = ts.create_model("a_swin_mini", criterion=criterion)
    with pytest.raises(ValueError, match="cannot be written"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_hub_is_asked_for_what_is_not_a_folder(tmp_path, monkeypatch):
    model, asked = ts.create_model("a_cvt_mini").eval(), []
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(saving, "hf_hub_download", lambda *given: asked.append(given) or str(tmp_path / given[1]))
    again = ts.from_pretrained("hf_hub:someone/a_cvt")
    assert asked == [("someone/a_cvt", "config.json"), ("someone/a_cvt", "model.safetensors")]
    assert torch.equal(again.norm.weight, model.norm.weight)


MADE = {
    "a_swin_mini_patch2_window4_32": lambda: ts.create_model("a_swin_mini", num_classes=3),
    "UperNet on a_swin_mini_patch2_window4_32": lambda: ts.UperNet("a_swin_mini", 3, channels=8),
}


@pytest.mark.parametrize("title", MADE)
def test_uploading_sends_the_folder(title, monkeypatch):
    api, sent = MagicMock(), []
    api.create_repo.side_effect = "https://hub/{}".format
    api.file_exists.side_effect = lambda repository, name: (repository, name) == ("someone/described", "README.md")

    def upload(repo_id, folder_path, commit_message):
        assert commit_message == f"Upload {title}"
        assert load_file(f"{folder_path}/model.safetensors").keys() == model.state_dict().keys()
        card = Path(folder_path, "README.md")
        sent.append(ModelCard.load(card) if card.exists() else None)

    api.upload_folder.side_effect = upload
    monkeypatch.setattr(saving, "HfApi", lambda: api)
    model = MADE[title]()
    about = {"description": "Trained on ants.", "license": "mit", "tags": ["ants"]}
    address = model.push_to_hub("someone/a_swin", card=about, label_names=["ant", "bee", "cat"])
    assert address == "https://hub/someone/a_swin"
    model.push_to_hub("someone/described")
    card, kept = sent
    assert kept is None, "a card that is there is its author's"
    task = "image-segmentation" if "UperNet" in title else "image-classification"
    expected = {"library_name": "trueshift", "pipeline_tag": task, "license": "mit", "tags": ["ants"]}
    assert card.data.to_dict() == expected
    for part in (title, "Trained on ants.", 'from_pretrained("someone/a_swin")', "Classes: ant, bee, cat."):
        assert part in card.text
    assert ("timm.create_model" in card.text) == ("UperNet" not in title)


@pytest.mark.parametrize(
    ("made", "law"),
    [
        (lambda: ts.create_model("a_cvt_mini"), "every circular shift its outputs stay the same, bit for bit"),
        (lambda: ts.create_model("a_cvt_mini", circular="width"), "every circular shift of columns its outputs stay"),
        (lambda: ts.create_model("cvt_mini"), "Nothing is guaranteed"),
        (lambda: ts.UperNet("a_cvt_mini", 3, channels=8), "every circular shift its outputs move along, bit for bit"),
        (lambda: ts.UperNet("cvt_mini", 3, channels=8), "Nothing is guaranteed"),
        (lambda: ts.FieldNet("a_cvt_mini", in_chans=2), "every circular shift its outputs move along, bit for bit"),
    ],
)
def test_a_card_says_what_holds_when_the_image_moves(made, law):
    model = made()
    text = saving.model_card(model, "someone/model", model.hub_config())
    assert law in text
    assert ("pipeline_tag" in text) == (not isinstance(model, ts.FieldNet))


def input_size_in(folder) -> list[int]:
    return json.loads((folder / "config.json").read_text())["pretrained_cfg"]["input_size"]


@pytest.mark.parametrize("name", ["a_swin_mini", "a_cvt_mini", "a_mvitv2_mini"])
def test_the_size_that_a_network_is_for_is_written(name, tmp_path):
    made = ts.create_model(name, img_size=64)
    assert input_size_in(made.save_pretrained(tmp_path)) == [3, 64, 64]
    assert list(timm.data.resolve_data_config({}, model=ts.from_pretrained(tmp_path))["input_size"]) == [3, 64, 64]
    resized = ts.create_model(name)
    resized.set_input_size((64, 32))
    assert input_size_in(resized.save_pretrained(tmp_path)) == [3, 64, 32]
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert list(timm.data.resolve_data_config({}, model=again)["input_size"]) == [3, 64, 32]
    assert ts.create_model(name, img_size=64, features_only=True).pretrained_cfg["input_size"] == (3, 64, 64)
    assert input_size_in(type(made)(made.config).save_pretrained(tmp_path)) == [3, 64, 64]  # nothing else known of it
    if "cvt" in name:  # nothing in it depends on the size
        assert ts.from_pretrained(tmp_path, img_size=32).pretrained_cfg["input_size"] == (3, 32, 32)


@pytest.mark.parametrize("title", MADE)
def test_names_of_classes_come_back_and_those_of_others_are_refused(title, tmp_path):
    described = {"label_names": ["ant", "bee", "cat"], "label_descriptions": {"ant": "an insect"}}
    model = MADE[title]()
    with pytest.raises(ValueError, match="2 label_names for 3 classes: needs one for each"):
        model.save_pretrained(tmp_path, label_names=["ant", "bee"])
    loaded = [ts.from_pretrained(model.save_pretrained(tmp_path, **described))]
    loaded.append(ts.from_pretrained(loaded[0].save_pretrained(tmp_path / "again")))
    if isinstance(model, ts.models.Backbone):
        loaded.append(timm.create_model(f"local-dir:{tmp_path}", pretrained=True))
    for again in loaded:
        assert list(again.pretrained_cfg["label_names"]) == ["ant", "bee", "cat"]
        assert again.pretrained_cfg["label_descriptions"] == {"ant": "an insect"}
        assert again.pretrained_cfg["num_classes"] == 3
    if isinstance(model, ts.models.Backbone):  # they go with the classifier
        again.reset_classifier(3)
        assert len(again.pretrained_cfg["label_names"]) == 3
        again.reset_classifier(4)
        assert not again.pretrained_cfg.get("label_names")
