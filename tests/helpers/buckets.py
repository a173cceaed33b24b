"""An in-memory bucket behind gs:// paths; epath and fsspec run as they do with a real one."""

import os

from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem

from bertjax import paths


def install(monkeypatch) -> dict:
    """Makes gs:// paths lead to an in-memory bucket during the test; returns its files by name."""

    class Bucket(MemoryFileSystem):
        protocol = "gs"
        store: dict = {}  # noqa: RUF012
        pseudo_dirs = [""]  # noqa: RUF012
        cachable = False

        @classmethod
        def _strip_protocol(cls, path):
            return os.fspath(path).removeprefix("gs://").strip("/")

    monkeypatch.setattr(paths, "reaches_buckets", lambda: True)
    kind = type(backend.fsspec_backend)
    local = backend.fsspec_backend._get_filesystem("file")
    monkeypatch.setattr(
        kind, "_get_filesystem", lambda self, name: Bucket() if name == "gcs" else local
    )
    return Bucket.store
