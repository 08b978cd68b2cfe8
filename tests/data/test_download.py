"""Fetching data sets: whole or not at all, going on after an interruption, from a server on this machine."""

import hashlib
import io
import os
import pickle
import re
import shutil
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from trueshift.data import CifarFiles, download, open_data
from trueshift.data.download import SOURCES, Remote

FILES = SOURCES["cifar10"].files


def packed(members, kind="gz"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{kind}") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def cifar_10():
    """Two images in each of CIFAR-10's files."""
    random = np.random.default_rng(0)
    batches = {name: random.integers(0, 256, (2, 3072), dtype=np.uint8) for name in FILES}
    return {
        f"cifar-10-batches-py/{name}": pickle.dumps({"data": data, "labels": [3, 7]}) for name, data in batches.items()
    }


CONTENT = packed(cifar_10())
HALF = len(CONTENT) // 2


class Server(ThreadingHTTPServer):
    """Gives one file, with the faults it is told to have."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.stops_after, self.says_length, self.status = CONTENT, True, None, True, 200
        self.asked = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/files/cifar-10-python.tar.gz"

    def sources(self, **changes):
        md5 = hashlib.md5(self.content).hexdigest()
        return {
            "cifar10": Remote(
                **{"url": self.url, "md5": md5, "folder": "cifar-10-batches-py", "files": FILES} | changes
            )
        }


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        content, start = server.content, 0
        if server.status != 200:
            return self.send_error(server.status)
        if wanted and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if server.says_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : server.stops_after])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_data_set_is_fetched_and_opens(tmp_path, server):
    told = []
    folder = download("cifar10", tmp_path / "new", lambda done, total: told.append((done, total)), server.sources())
    assert folder == tmp_path / "new" / "cifar-10-batches-py"
    assert os.listdir(tmp_path / "new") == ["cifar-10-batches-py"]
    assert told[-1] == (len(CONTENT), len(CONTENT))
    for path in (folder, tmp_path / "new"):
        source = open_data(path, "train")
        assert isinstance(source, CifarFiles)
        assert source.labels.tolist() == [3, 7] * 5


def test_what_is_there_is_not_fetched_again(tmp_path, server):
    folder = download("cifar10", tmp_path, sources=server.sources())
    assert download("cifar10", tmp_path, sources=server.sources()) == folder
    assert server.asked == [None]


def test_a_file_of_this_machine_can_be_named(tmp_path, server):
    (tmp_path / "cifar.tgz").write_bytes(CONTENT)
    url = (tmp_path / "cifar.tgz").as_uri()
    assert download("cifar10", tmp_path / "new", sources=server.sources(url=url)).is_dir()
    assert server.asked == []


def test_a_folder_with_files_missing_is_told(tmp_path, server):
    folder = download("cifar10", tmp_path, sources=server.sources())
    (folder / "data_batch_3").unlink()
    with pytest.raises(FileExistsError, match=r"has no data_batch_3: remove the folder, and it is fetched anew"):
        download("cifar10", tmp_path, sources=server.sources())


# interruptions


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_goes_on(tmp_path, server, ranges):
    server.ranges, server.stops_after = ranges, HALF
    with pytest.raises(
        OSError, match=rf"cannot be fetched \(it ended after {HALF} of {len(CONTENT)} bytes\): try again"
    ):
        download("cifar10", tmp_path, sources=server.sources())
    part = tmp_path / "cifar-10-python.tar.gz.part"
    assert part.read_bytes() == CONTENT[:HALF]
    server.stops_after, told = None, []
    folder = download("cifar10", tmp_path, lambda done, total: told.append((done, total)), server.sources())
    assert len(CifarFiles(folder)) == 2
    assert server.asked == [None, f"bytes={HALF}-"]
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert (told[0][0] > HALF) or not ranges
    assert not part.exists()


def test_what_the_user_stops_goes_on(tmp_path, server):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("cifar10", tmp_path, stop, server.sources())
    assert (tmp_path / "cifar-10-python.tar.gz.part").exists()
    assert download("cifar10", tmp_path, sources=server.sources()).is_dir()


def test_a_whole_part_is_only_unpacked(tmp_path, server):
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(CONTENT)
    assert download("cifar10", tmp_path, sources=server.sources()).is_dir()
    assert server.asked == []


def test_a_part_longer_than_the_file_is_begun_anew(tmp_path, server):
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(CONTENT + b"more")
    assert download("cifar10", tmp_path, sources=server.sources()).is_dir()
    assert server.asked == [f"bytes={len(CONTENT) + 4}-", None]


def test_a_server_need_not_say_how_much_it_is(tmp_path, server):
    server.says_length, told = False, []
    assert download("cifar10", tmp_path, lambda done, total: told.append((done, total)), server.sources()).is_dir()
    assert told[-1] == (len(CONTENT), 0)


# what goes wrong


def test_a_wrong_checksum_removes_the_file(tmp_path, server):
    wrong = server.sources(md5="0" * 32)
    with pytest.raises(
        ValueError, match=rf"gave a file with the MD5 [0-9a-f]{{32}}: needs {'0' * 32}; removed, try again"
    ):
        download("cifar10", tmp_path, sources=wrong)
    assert os.listdir(tmp_path) == []


def test_a_damaged_part_is_found_out(tmp_path, server):
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(b"x" * HALF)
    with pytest.raises(ValueError, match="removed, try again"):
        download("cifar10", tmp_path, sources=server.sources())
    assert download("cifar10", tmp_path, sources=server.sources()).is_dir()


def test_a_file_put_there_by_hand_is_checked_used_and_kept(tmp_path, server):
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match=r"cifar-10-python\.tar\.gz has the MD5 .*: needs .*, copy it again"):
        download("cifar10", tmp_path, sources=server.sources())
    assert archive.exists()
    archive.write_bytes(CONTENT)
    assert download("cifar10", tmp_path, sources=server.sources()).is_dir()
    assert archive.exists()
    assert server.asked == []


def test_without_a_network_the_way_by_hand_is_told(tmp_path, server):
    server.status = 404
    by_hand = re.escape(str(tmp_path / "cifar-10-python.tar.gz"))
    message = rf"{re.escape(server.url)} cannot be fetched \(.*404.*\): try again.*put the file at {by_hand} by hand"
    with pytest.raises(OSError, match=message):
        download("cifar10", tmp_path, sources=server.sources())
    nobody = server.sources(url="http://127.0.0.1:1/cifar-10-python.tar.gz")
    with pytest.raises(
        OSError, match=rf"http://127\.0\.0\.1:1/.* cannot be fetched \(.*refused.*\).*{by_hand} by hand"
    ):
        download("cifar10", tmp_path, sources=nobody)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_told_and_the_part_stays(tmp_path, server):
    part = tmp_path / "cifar-10-python.tar.gz.part"
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"the disk is full: make room in .*; what was fetched is kept in .*\.part"):
        download("cifar10", tmp_path, sources=server.sources())
    assert part.is_symlink()


def test_a_disk_that_fills_up_while_unpacking_is_told(tmp_path, server, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="the disk is full"):
            download("cifar10", tmp_path, sources=server.sources())
    assert os.listdir(tmp_path) == ["cifar-10-python.tar.gz.part"]
    assert download("cifar10", tmp_path, sources=server.sources()).is_dir()
    assert len(server.asked) == 1


@pytest.mark.parametrize("name", ["../escaped", "cifar-10-batches-py/../../escaped", "/escaped", ".."])
def test_a_path_that_leads_outside_is_refused(tmp_path, server, name):
    server.content = packed({name: b"out"} | cifar_10())
    with pytest.raises(ValueError, match=r"would write where it must not .*: needs paths inside its folder"):
        download("cifar10", tmp_path / "inner", sources=server.sources())
    assert os.listdir(tmp_path) == ["inner"]
    assert os.listdir(tmp_path / "inner") == ["cifar-10-python.tar.gz.part"]


def test_links_are_left_in_the_archive(tmp_path, server):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        link = tarfile.TarInfo("cifar-10-batches-py/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(link)
        inside = tarfile.TarInfo("cifar-10-batches-py/link/passwd")
        archive.addfile(inside, io.BytesIO())
        for name, content in cifar_10().items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    server.content = made.getvalue()
    folder = download("cifar10", tmp_path, sources=server.sources())
    assert (folder / "link").is_dir()
    assert not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no tar file", "is not a whole compressed tar file"),
        (CONTENT[: len(CONTENT) // 2], "is not a whole compressed tar file"),
        (packed({"other/file": b""}), "has no cifar-10-batches-py/data_batch_1: needs all of data_batch_1, "),
    ],
    ids=["no archive", "half an archive", "another archive"],  # its bytes hold the time, and processes must agree
)
def test_what_does_not_unpack_to_the_data_set_leaves_nothing_behind(tmp_path, server, content, message):
    server.content = content
    with pytest.raises(ValueError, match=message):
        download("cifar10", tmp_path, sources=server.sources())
    assert os.listdir(tmp_path) == ["cifar-10-python.tar.gz.part"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("imagenet", r"agree to its terms at https://image-net\.org, and lay it out as train/CLASS/\*\.JPEG"),
        ("ade20k", r"agree to its terms .* lay it out as images/training/\*\.jpg with annotations/training/\*\.png"),
        ("mnist", "data set 'mnist': needs one of cifar10, cifar100"),
    ],
)
def test_other_data_sets_are_told_how_to_get(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        download(name, tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused_first(tmp_path, server):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="needs a folder to write to"):
        download("cifar10", tmp_path / "file", sources=server.sources())
    assert server.asked == []
