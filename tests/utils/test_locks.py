"""One writer at a time; what a killed one leaves behind is in nobody's way."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trueshift.utils import locks
from trueshift.utils.locks import sole_writer

HOLD = """
import os, runpy, sys, time
from pathlib import Path
sole_writer = runpy.run_path(sys.argv[1])["sole_writer"]  # the file alone: the package takes seconds
with sole_writer(Path(sys.argv[2])):
    worker = len(sys.argv) > 3 and not os.fork()  # outlives its parent for a while
    if worker or len(sys.argv) == 3:
        print("held", flush=True)
    if worker:
        os.close(1)
        time.sleep(20)
        os._exit(0)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """Start a process that holds the folder until its input ends."""
    started = []

    def start(*options):
        words = [sys.executable, "-c", HOLD, locks.__file__, tmp_path, *options]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[0].stdout.readline() == "held\n"
        return started[0]

    yield start
    started[0].kill()
    started[0].communicate()


def test_a_folder_is_held_once_and_nothing_stays_also_after_an_error(tmp_path):
    with sole_writer(tmp_path):
        for folder in (tmp_path, tmp_path / ".." / tmp_path.name):
            with pytest.raises(BlockingIOError, match="is being written to by process"), sole_writer(folder):
                pass
    with pytest.raises(ZeroDivisionError), sole_writer(tmp_path):
        1 / 0  # noqa: B018
    assert not os.listdir(tmp_path)
    with sole_writer(tmp_path):
        pass


def test_another_process_is_named_and_lets_go_at_its_end(tmp_path, hold):
    holder = hold()
    message = rf"by process {holder.pid} on .*: wait for its end, or .* another --output"
    with pytest.raises(BlockingIOError, match=message), sole_writer(tmp_path):
        pass
    holder.communicate("")
    with sole_writer(tmp_path):
        pass


NO_FORK = pytest.mark.skipif(os.name == "nt", reason="there is no fork")


@pytest.mark.parametrize("options", [[], pytest.param(["fork"], marks=NO_FORK)])
def test_a_killed_process_needs_no_tidying(tmp_path, hold, options):
    holder = hold(*options)
    holder.kill()
    holder.wait()
    assert os.listdir(tmp_path) == [".lock"]
    began = time.monotonic()
    with sole_writer(tmp_path):
        assert time.monotonic() - began < 5  # the worker still sleeps
    assert not os.listdir(tmp_path)


@NO_FORK
def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    def none(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.warns(RuntimeWarning, match=r"No locks available.*: start one run at a time"), sole_writer(tmp_path):
        assert Path(tmp_path, ".lock").exists()
    assert not os.listdir(tmp_path)
