"""The folder in which commands on a CPU keep compiled programs, so that later starts compile less.

    compilation_cache.use()        # before jax is imported

JAX writes the entries and finds them by program, compiler version and flags. This module chooses
the folder and guards what JAX does not check:

* A program contains machine code. Each type of processor has its own folder, because JAX loads a
  program of another processor and only logs that it may crash.
* JAX does not write atomically, and bytes that changed on the disk may abort the process. An entry
  gets a checksum at the first start after it was written, if it decompresses, which a truncated one
  does not. An entry that does not match its checksum is deleted.

NOTE: XLA cannot serialize programs that call oneDNN, so with jaxlib 0.12 or later nothing is kept
of a bfloat16 train step on a CPU.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import warnings
import zlib

from bertjax.runtime import backend

FOLDER = "JAX_COMPILATION_CACHE_DIR"
# JAX ignores programs that compile in less than a second; a start compiles dozens of these.
MIN_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
SWITCH = "JAX_ENABLE_COMPILATION_CACHE"

MAX_BYTES = 256 * 2**20  # all entries are read at every start; this much takes 0.2 s
MAX_ENTRIES = 2_000
_ENTRY = "-cache"  # the end of the names of entries
_ZSTANDARD_MAGIC = b"\x28\xb5\x2f\xfd"
_CPU_INFO = pathlib.Path("/proc/cpuinfo")


def use() -> None:
    """Makes JAX keep compiled programs in a folder of the user's cache, if JAX runs on a CPU.

    The folder is $XDG_CACHE_HOME/bertjax/programs-PROCESSOR, by default below ~/.cache. Does
    nothing if there is an accelerator, if the user has set JAX_COMPILATION_CACHE_DIR or
    JAX_ENABLE_COMPILATION_CACHE, or if the folder cannot be written. NOTE: must be called before
    jax is imported, because jax reads the environment then.
    """
    if FOLDER in os.environ or SWITCH in os.environ or backend.has_accelerator():
        return
    parent = pathlib.Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))
    folder = parent / "bertjax" / f"programs-{_processor()}"
    try:
        if not _is_own(folder):
            return
        check(folder)
    except OSError:  # a read-only home, for example: compiles as without a cache
        return
    os.environ[FOLDER] = str(folder)
    os.environ.setdefault(MIN_SECONDS, "0.02")
    warnings.filterwarnings("ignore", "Error writing persistent .* MemoryError: std::bad_alloc")


def check(folder: pathlib.Path) -> None:
    """Deletes the damaged entries of `folder`, and the oldest ones if there are too many.

    Entries without a checksum get one.
    """
    entries = []  # (time of writing, size, path)
    for path in folder.glob(f"*{_ENTRY}"):
        with contextlib.suppress(FileNotFoundError):  # deleted by another process
            content = path.read_bytes()
            checksum = _checksum(path)
            digest = hashlib.sha256(content).hexdigest()
            if checksum.exists():
                is_whole = checksum.read_text() == digest
            else:
                is_whole = _decompresses(content)
                if is_whole:
                    checksum.write_text(digest)
            if is_whole:
                entries.append((path.stat().st_mtime, len(content), path))
            else:
                _delete(path)
    total = 0
    for number, (_, size, path) in enumerate(sorted(entries, reverse=True)):
        total += size
        if total > MAX_BYTES or number >= MAX_ENTRIES:
            _delete(path)


def _delete(entry: pathlib.Path) -> None:
    entry.unlink(missing_ok=True)
    _checksum(entry).unlink(missing_ok=True)


def _checksum(entry: pathlib.Path) -> pathlib.Path:
    return entry.with_name(f"{entry.name}.sha256")


def _decompresses(content: bytes) -> bool:
    """Returns whether `content` is a whole stream of one of the two codecs that JAX uses."""
    if content.startswith(_ZSTANDARD_MAGIC):
        import zstandard  # JAX used it to write the entry

        try:
            zstandard.ZstdDecompressor().decompress(content)
        except zstandard.ZstdError:
            return False
    else:
        try:
            zlib.decompress(content)
        except zlib.error:
            return False
    return True


def _is_own(folder: pathlib.Path) -> bool:
    """Creates `folder` if it does not exist; returns whether only this user can write to it.

    An entry is code that this process runs.
    """
    if not folder.is_absolute():  # there is no home
        return False
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    is_private = not status.st_mode & 0o022
    return is_private and (not hasattr(os, "getuid") or status.st_uid == os.getuid())


def _processor() -> str:
    """Returns a name for the type of the processor, which differs if its instructions differ."""
    described = [platform.machine()]
    if _CPU_INFO.exists():
        names = ("vendor_id", "model name", "flags", "Features", "CPU part")
        lines = _CPU_INFO.read_text(errors="replace").splitlines()
        described += sorted({line for line in lines if line.startswith(names)})
    else:
        described.append(platform.processor())
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]
