"""One writer to a folder at a time: two would destroy each other's files."""

import errno
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_NAME = ".lock"
_HELD = {errno.EACCES, errno.EAGAIN}  # what a system says of a lock that another process has
_FAR = 1 << 20  # the byte that Windows locks: nobody else could read it, and who holds the lock stands at the start
# of this process, which no lock of its own holds up; to close the file a second time would even let go of it
_mine: set[Path] = set()


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold a folder; refused while another process does, or another part of this one.

    The system lets go of it when the process ends, however it does: nothing is to be removed by hand.
    """
    path = folder.resolve() / _NAME
    if path in _mine:
        raise _refusal(folder, _own_name())
    handle = _opened(path, folder)
    _mine.add(path)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, _own_name().encode())
        yield
    finally:
        _mine.remove(path)
        with suppress(OSError):  # before it is let go, so that nobody else's is removed; Windows keeps it
            path.unlink()
        os.close(handle)


def _opened(path: Path, folder: Path) -> int:
    """The file behind the path, locked."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(handle)
        except OSError as error:
            if error.errno in _HELD:
                holder = os.read(handle, 1000).decode(errors="replace") or "another process"
                os.close(handle)
                raise _refusal(folder, holder) from None
            warnings.warn(
                f"{folder} cannot be locked ({error.strerror}): start one run at a time", RuntimeWarning, stacklevel=4
            )
            return handle
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)  # removed by the one that held it, after it was opened here


def _take(handle: int) -> None:
    """Lock an open file, or fail at once."""
    if sys.platform == "win32":
        os.lseek(handle, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
    else:
        # not flock, which a forked worker would hold for as long as it outlives a killed process
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _refusal(folder: Path, holder: str) -> BlockingIOError:
    return BlockingIOError(f"{folder} is being written to by {holder}: wait for its end, or choose another --output")
