"""Write files whole or not at all, and know them again."""

import hashlib
import json
import os
import tempfile
from math import isfinite
from pathlib import Path
from typing import Any


def write_whole(path: str | Path, content: str | bytes) -> Path:
    """Replace a file by new content at once: a full disk or a killed process leaves what was there before."""
    path = Path(path)
    # names of files may be in another encoding
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return path


def writable_folder(path: str | Path) -> Path:
    """A folder to write to, made if need be; refused now rather than after an hour of work."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file: needs a folder to write to")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise PermissionError(f"{path} cannot be written to ({error.strerror}): choose another folder") from error
    return path


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_text(value: Any) -> str:
    """Data as JSON, see :func:`finite`."""
    return json.dumps(finite(value), indent=1, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Data with infinite numbers, which JSON lacks, as None."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
