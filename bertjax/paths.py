"""Checks paths from the user, local or gs://, before anything is opened.

    paths.of("gs://bucket/run")   # an epath.Path
    paths.of("http://host/run")   # UserError: http://host/run: ...
"""

import importlib.util
import os
import re
import stat

from etils import epath

from bertjax import errors

MAX_DEPTH = 200  # maximum depth of a folder; some of Python's functions recurse into each level


def reaches_buckets() -> bool:
    """Returns whether the library for gs:// is installed."""
    return importlib.util.find_spec("gcsfs") is not None


def of(path: str | os.PathLike) -> epath.Path:
    """Returns the path as an epath.Path. Raises UserError, naming it, if it cannot be valid."""
    text = os.fspath(path)
    display = text.encode("utf-8", "backslashreplace").decode()[:200].replace("\0", "\\0")
    if not text:
        raise errors.UserError("a path is empty: give the name of a file or folder")
    if "\0" in text or display != text[:200]:
        raise errors.UserError(f"{display}: contains an invalid character; rename the file")
    if len(text.split("/")) > MAX_DEPTH:
        raise errors.UserError(f"{display}...: is more than {MAX_DEPTH} folders deep; use fewer")
    if text.startswith("gs:") and not text.startswith("gs://"):
        raise errors.UserError(f"{display}: give gs://BUCKET/FOLDER, with two slashes")
    scheme, slashes, rest = text.partition("://")
    if slashes and re.fullmatch(r"[A-Za-z0-9+.-]*", scheme):
        if scheme == "file":
            raise errors.UserError(f"{display}: give a local path without file://")
        if scheme != "gs":
            raise errors.UserError(
                f"{display}: this scheme is unsupported; give a local path or gs://..."
            )
        if not rest.strip("/"):
            raise errors.UserError(f"{display}: contains no bucket name; give gs://BUCKET/FOLDER")
        if not reaches_buckets():
            raise errors.UserError(f"{display}: gs:// paths need gcsfs: pip install 'bertjax[gcs]'")
    elif _is_device(text):
        raise errors.UserError(
            f"{display}: is a device or a pipe, not a file; write its output to a file first"
        )
    return epath.Path(text)


def _is_device(text: str) -> bool:
    """Returns whether a local path exists but is neither a file nor a folder.

    Reading such a path may never end.
    """
    try:
        mode = os.stat(text).st_mode
    except OSError:  # absent or not readable: opening it will raise the error
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
