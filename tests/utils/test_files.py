"""Files are written whole or not at all, and an error is one line."""

import json
import os

import pytest

from trueshift.utils.checks import first_line
from trueshift.utils.files import json_text, writable_folder, write_whole


def test_what_is_written_is_there(tmp_path):
    assert write_whole(tmp_path / "a.txt", "söme").read_text() == "söme"
    assert write_whole(tmp_path / "a.txt", b"\x00").read_bytes() == b"\x00"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch, failing):
    write_whole(tmp_path / "a.txt", "old")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_numbers_without_bound_are_null():
    text = json_text({"a": [1.5, float("inf"), (float("nan"), 2)], "b": None})
    assert json.loads(text) == {"a": [1.5, None, [None, 2]], "b": None}


def test_a_folder_is_made_or_refused(tmp_path):
    assert writable_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="needs a folder"):
        writable_folder(tmp_path / "file")
    with pytest.raises(PermissionError, match="choose another folder"):
        writable_folder(tmp_path / "file" / "inside")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no\nTraceback"), "no"),
        (ValueError("\n  no  \n"), "no"),
        (KeyError(), "KeyError"),
        (ValueError(" \n"), "ValueError"),
        (ValueError("a" * 300), "a" * 200),
    ],
)
def test_an_error_in_one_line(error, said):
    assert first_line(error) == said
