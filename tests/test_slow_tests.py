"""The list of slow tests: what a run writes, and what `--fast` leaves out."""

import types

import pytest

from tests.helpers import slow_tests

HERE = "tests/test_slow_tests.py"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(slow_tests, "FILE", tmp_path / "slow.txt")
    lines = [f"{HERE}::test_once_slow", "tests/conftest.py::test_of_another", "gone.py::test_x"]
    slow_tests.FILE.write_text("".join(f"{line}\n" for line in lines))
    return slow_tests.FILE


def run(keep):
    clock = slow_tests._Clock(keep=keep)
    durations = {"test_a[x]": [0.1, 0.8, 0.1], "test_a[y]": [0, 0.2, 0], "test_b[x]": [0, 0.4, 0]}
    for name, phases in durations.items():
        for seconds in phases:
            nodeid = f"{HERE}::{name}"
            clock.pytest_runtest_logreport(types.SimpleNamespace(nodeid=nodeid, duration=seconds))
    clock.pytest_sessionfinish()


@pytest.mark.parametrize("keep", [False, True])
def test_a_run_replaces_the_lines_of_its_files(file, keep):
    run(keep)
    once = [f"{HERE}::test_once_slow"] if keep else []
    assert file.read_text().splitlines() == [
        "tests/conftest.py::test_of_another", f"{HERE}::test_a", *once
    ]  # fmt: skip


def test_all_cases_of_a_listed_function_are_marked(file):
    marked = []
    names = ["test_once_slow", "test_once_slow[a::b[c]]", "test_once", "test_once_slow_2[x]"]
    items = [
        types.SimpleNamespace(
            nodeid=f"{HERE}::{name}", add_marker=lambda _, n=name: marked.append(n)
        )
        for name in names
    ]
    slow_tests.mark(items)
    assert marked == names[:2]


def test_fast_adds_to_the_tests_that_were_chosen():
    added = []
    for expression in ("", "a or b"):
        options = types.SimpleNamespace(markexpr=expression)
        config = types.SimpleNamespace(
            option=options,
            getoption=lambda name: name == "--fast",
            addinivalue_line=lambda *_: None,
        )
        slow_tests.configure(config)
        added.append(options.markexpr)
    assert added == ["not slow", "(a or b) and not slow"]
