"""One run per output folder: two would overwrite each other's files."""

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold a folder; refused while another process, or another part of this one, holds it.

    The system releases the lock when the process ends, however it ends.
    """
    path = folder.resolve() / ".lock"
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        holder = "another process"
        with suppress(OSError):
            holder = path.read_text(errors="replace") or holder
        raise BlockingIOError(
            f"{folder} is being written to by {holder}: wait for its end, or choose another --output"
        ) from None
    except OSError as error:
        reason = f"{folder} cannot be locked ({error.strerror}): start one run at a time"
        warnings.warn(reason, RuntimeWarning, stacklevel=3)
    try:
        with suppress(OSError):  # Windows lets nobody write to a locked file
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()
