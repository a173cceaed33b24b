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


def test_starts_the_same_command_with_huge_pages(started, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "bertjax", "pretrain", "--x=1"])
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    backend.start_with_huge_pages()
    ((program, command, environment),) = started
    assert program == sys.executable
    assert command == [sys.executable, "-m", "bertjax", "pretrain", "--x=1"]
    assert environment["GLIBC_TUNABLES"] == "glibc.malloc.check=1:glibc.malloc.hugetlb=1"
    assert environment["JAX_PLATFORMS"] == "cpu"


def test_goes_on_where_it_would_change_nothing(started, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")  # the user's own
        backend.start_with_huge_pages()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "has_accelerator", lambda: True)
        backend.start_with_huge_pages()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        backend.start_with_huge_pages()
    for setting in ("[always] madvise never", "always madvise [never]"):
        backend._KERNEL_HUGE_PAGES.write_text(setting)
        backend.start_with_huge_pages()
    backend._KERNEL_HUGE_PAGES.unlink()
    backend.start_with_huge_pages()
    assert not started


def test_is_started_once():
    code = (
        "import os; print('begins', flush=True); from bertjax.runtime import backend; "
        "backend.start_with_huge_pages(); print(os.environ.get('GLIBC_TUNABLES'))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    lines = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split()
    assert lines in (
        ["begins", "begins", "glibc.malloc.hugetlb=1"],
        ["begins", "None"],  # the kernel's setting decides already
    )
