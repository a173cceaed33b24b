"""The cache of compiled programs: its folder, damaged and old entries, and a second start."""

import os
import pathlib
import subprocess
import sys
import zlib

import pytest
import zstandard

from bertjax.runtime import backend, compilation_cache
from tests.helpers import children

# Compiles one program as a command does, with entries of every size, and prints whether it was read
# from the cache.
PROGRAM = """
import sys
from bertjax.runtime import compilation_cache
compilation_cache.use()
import jax
hits = []
jax.monitoring.register_event_listener(lambda name, **kw: hits.append(name.rpartition("/")[2]))
jax.jit(lambda x: x @ x + 1).lower(jax.ShapeDtypeStruct((8, 8), "float32")).compile()
print("hit" if "cache_hits" in hits else "miss")
"""


@pytest.fixture
def cache_home(monkeypatch, tmp_path):
    """The environment of a user without accelerator who has set nothing; returns the cache's home.

    Restores the environment, which `use` changes.
    """
    for name in (compilation_cache.FOLDER, compilation_cache.SWITCH, compilation_cache.MIN_SECONDS):
        monkeypatch.setenv(name, "")  # so that the fixture restores it
        monkeypatch.delenv(name)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "bertjax"


def _entry(folder: pathlib.Path, name: str, content: bytes) -> pathlib.Path:
    path = folder / f"{name}-cache"
    path.write_bytes(content)
    return path


def test_each_type_of_processor_has_its_own_folder(cache_home, monkeypatch, tmp_path):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(compilation_cache, "_CPU_INFO", info)
    for flags in ("avx2", "avx2 avx512f", "avx2"):
        info.write_text(f"model name : EPYC\nflags : {flags}\nbogomips : {os.urandom(4).hex()}\n")
        compilation_cache.use()
        assert pathlib.Path(os.environ.pop(compilation_cache.FOLDER)).parent == cache_home
    assert len(list(cache_home.iterdir())) == 2


def test_a_users_own_setting_an_accelerator_or_a_read_only_home_means_no_folder(
    cache_home, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch:
        patch.setenv(compilation_cache.FOLDER, "/mine")
        compilation_cache.use()
        assert os.environ[compilation_cache.FOLDER] == "/mine"
    with monkeypatch.context() as patch:
        patch.setenv(compilation_cache.SWITCH, "false")
        compilation_cache.use()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "has_accelerator", lambda: True)
        compilation_cache.use()
    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        compilation_cache.use()
    assert not cache_home.exists() and compilation_cache.FOLDER not in os.environ


def test_a_folder_that_others_can_write_to_is_not_used(cache_home):
    compilation_cache.use()
    pathlib.Path(os.environ.pop(compilation_cache.FOLDER)).chmod(0o777)
    compilation_cache.use()
    assert compilation_cache.FOLDER not in os.environ


@pytest.mark.parametrize("compress", [zstandard.compress, zlib.compress])
def test_truncated_and_changed_entries_are_deleted(tmp_path, compress):
    content = compress(os.urandom(4096))
    whole = _entry(tmp_path, "whole", content)
    _entry(tmp_path, "truncated", content[:-100])
    _entry(tmp_path, "empty", b"")
    compilation_cache.check(tmp_path)
    assert [path.name for path in tmp_path.glob("*-cache")] == ["whole-cache"]
    compilation_cache.check(tmp_path)
    assert whole.exists()
    changed = bytearray(content)
    changed[1000] ^= 1
    whole.write_bytes(changed)
    compilation_cache.check(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_oldest_entries_are_deleted(tmp_path, monkeypatch):
    sizes = {}
    for age in range(5):
        path = _entry(tmp_path, str(age), zlib.compress(os.urandom(1000)))
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
        sizes[path.name] = path.stat().st_size
    monkeypatch.setattr(compilation_cache, "MAX_ENTRIES", 3)
    compilation_cache.check(tmp_path)
    assert {path.name for path in tmp_path.glob("*-cache")} == {"0-cache", "1-cache", "2-cache"}
    monkeypatch.setattr(compilation_cache, "MAX_BYTES", sizes["0-cache"] + sizes["1-cache"])
    compilation_cache.check(tmp_path)
    names = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert names == {"0-cache", "1-cache"}


def test_a_second_start_reads_the_program(cache_home):
    environment = {k: v for k, v in children.environment().items() if not k.startswith("JAX_")}
    environment |= {"JAX_PLATFORMS": "cpu", compilation_cache.MIN_SECONDS: "0"}
    argv = [sys.executable, "-c", PROGRAM]
    for expected in ("miss", "hit"):
        done = subprocess.run(argv, capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done.stderr
