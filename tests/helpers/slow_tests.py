"""The slow tests: tests/slow.txt lists them, `--fast` leaves them out, `--write-slow` renews it.

    bash tests/run.sh --fast
    bash tests/run.sh --write-slow         # after tests were added or became faster or slower

A line is a test function, for all of its parameters. It is slow if a case takes SECONDS on average,
with the fixtures that the case sets up.
"""

import collections
import pathlib

SECONDS = 0.5
ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "slow.txt"


def add_options(parser) -> None:
    """Adds --fast and --write-slow."""
    parser.addoption("--fast", action="store_true", help="skip the tests of tests/slow.txt")
    parser.addoption(
        "--write-slow",
        action="store_true",
        help="rewrite tests/slow.txt for the files of this run; with --fast, only add to it",
    )


def configure(config) -> None:
    """Declares the marker `slow`, applies --fast, and measures if --write-slow is set."""
    config.addinivalue_line("markers", f"slow: takes {SECONDS} s or more; see tests/slow.txt")
    if config.getoption("--fast"):
        leave_out(config, "slow")
    if config.getoption("--write-slow") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Clock(keep=config.getoption("--fast")))


def leave_out(config, marker: str) -> None:
    """Leaves out the tests with a marker, besides those that the user leaves out."""
    asked = config.option.markexpr
    config.option.markexpr = f"({asked}) and not {marker}" if asked else f"not {marker}"


def mark(items) -> None:
    """Marks the tests of tests/slow.txt."""
    slow = _read()
    for item in items:
        if _function(item.nodeid) in slow:
            item.add_marker("slow")


def slow_functions(seconds: dict[str, float]) -> set[str]:
    """Returns the slow test functions, given the seconds that each test took."""
    cases = collections.defaultdict(list)
    for test, duration in seconds.items():
        cases[_function(test)].append(duration)
    return {name for name, times in cases.items() if sum(times) / len(times) >= SECONDS}


class _Clock:
    """Adds up what each test took, in any process of the run, and rewrites the list."""

    def __init__(self, *, keep: bool):
        self._keep = keep
        self._seconds: dict[str, float] = collections.defaultdict(float)

    def pytest_runtest_logreport(self, report) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        files = {_file(test) for test in self._seconds}
        slow = slow_functions(self._seconds)
        for name in _read():
            file = _file(name)
            if (ROOT / file).exists() and (self._keep or file not in files):
                slow.add(name)
        FILE.write_text("".join(f"{name}\n" for name in sorted(slow)))


def _read() -> set[str]:
    return set(FILE.read_text().splitlines())


def _file(test: str) -> str:
    return test.split("::")[0]


def _function(test: str) -> str:
    return test.split("[")[0]
