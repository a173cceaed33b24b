"""Settings of a process."""

import os
import subprocess
import sys

import pytest

from bertjax.runtime import backend


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What is started anew, on a Linux machine without accelerator whose kernel asks for advice."""
    kernel = tmp_path / "enabled"
    kernel.write_text("always [madvise] never\n")
    monkeypatch.setattr(backend, "_KERNEL_HUGE_PAGES", kernel)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    calls = []
    monkeypatch.setattr(os, "execve", lambda *args: calls.append(args))
    return calls


def test_starts_the_same_command_with_options_of_glibc(started, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "bertjax", "pretrain", "--x=1"])
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    backend.start_with_kept_memory()
    ((program, command, environment),) = started
    assert program == sys.executable
    assert command == [sys.executable, "-m", "bertjax", "pretrain", "--x=1"]
    theirs, *ours = environment["GLIBC_TUNABLES"].split(":")
    assert theirs == "glibc.malloc.check=1"
    assert {"glibc.malloc.hugetlb=1", "glibc.malloc.arena_max=1"} < set(ours)
    assert environment["JAX_PLATFORMS"] == "cpu"


def test_goes_on_where_it_would_change_nothing(started, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")  # the user's own
        backend.start_with_kept_memory()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "has_accelerator", lambda: True)
        backend.start_with_kept_memory()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        backend.start_with_kept_memory()
    assert not started


def test_huge_pages_are_asked_for_if_the_kernel_lets_a_program_choose(started):
    for setting in ("[always] madvise never", "always madvise [never]"):
        backend._KERNEL_HUGE_PAGES.write_text(setting)
        assert "hugetlb" not in backend.memory_options()
    backend._KERNEL_HUGE_PAGES.unlink()
    assert "hugetlb" not in backend.memory_options()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_is_started_once_and_keeps_freed_memory():
    code = """
import os, resource, threading
print("begins", flush=True)
from bertjax.runtime import backend
backend.start_with_kept_memory()
print(os.environ["GLIBC_TUNABLES"])
import numpy as np
def use():
    np.ones(2**26, np.uint8)  # 64 MiB
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for function in (use, use, lambda: [thread.start() or thread.join() for thread in threads]):
    threads = [threading.Thread(target=use) for _ in range(2)]
    before = faults()
    function()
    print(faults() - before)
"""
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    lines = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split()
    assert lines[:3] == ["begins", "begins", backend.memory_options()]
    first, second, in_threads = map(int, lines[3:])
    assert first > 20 > second
    assert in_threads < 100  # their stacks


@pytest.mark.parametrize(
    ("dtype", "jaxlib", "cpu", "chosen"),
    [
        ("bfloat16", "0.12.0.1", "fpu avx2 avx512f avx512_bf16", True),
        ("bfloat16", "0.13.1", "amx_bf16 amx_tile", True),
        ("bfloat16", "0.12.0.1", "fpu avx2 avx512f", False),
        ("bfloat16", "0.10.2", "avx512_bf16", False),
        ("float32", "0.12.0.1", "avx512_bf16", False),
    ],
)
def test_bfloat16_flags_need_instructions_for_it(dtype, jaxlib, cpu, chosen, monkeypatch, tmp_path):
    """Without them the flags would give wrong gradients, and older versions do not know them."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_xnnpack=true")  # the user's own
    monkeypatch.setattr(backend.importlib.metadata, "version", lambda name: jaxlib)
    (tmp_path / "cpuinfo").write_text(f"model name\t: CPU\nflags\t\t: {cpu}\n")
    monkeypatch.setattr(backend, "_CPU_INFO", tmp_path / "cpuinfo")
    backend.configure(dtype)
    flags = os.environ["XLA_FLAGS"].split()
    assert ("--xla_cpu_experimental_onednn_custom_call=true" in flags) == chosen
    assert "--xla_cpu_use_xnnpack=true" in flags and "--xla_cpu_use_xnnpack=false" not in flags
    monkeypatch.setattr(backend, "_CPU_INFO", tmp_path / "missing")  # as on macOS
    monkeypatch.setenv("XLA_FLAGS", "")
    backend.configure(dtype)
    assert "onednn" not in os.environ["XLA_FLAGS"]
