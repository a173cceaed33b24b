"""The proofs: tests that show at length, or for one more case, what a quicker test shows too.

    bash tests/run.sh            # without them
    bash tests/run.sh --proofs   # all tests: before a release, and after a change that they prove

    @pytest.mark.proof                                           # a test
    @pytest.mark.parametrize("family", proofs.all_but(FAMILIES, "bert", "t5"))   # further cases

A test that is named on the command line (`FILE::TEST`) runs in any case.
"""

from collections.abc import Iterable

import pytest

from tests.helpers import slow_tests


def add_options(parser) -> None:
    """Adds --proofs."""
    parser.addoption("--proofs", action="store_true", help="run the tests marked `proof` too")


def configure(config) -> None:
    """Declares the marker `proof` and leaves its tests out unless they are asked for."""
    config.addinivalue_line("markers", "proof: one more case, or the long form, of another test")
    named = any("::" in arg for arg in config.args)
    if not (config.getoption("--proofs") or named or "proof" in config.option.markexpr):
        slow_tests.leave_out(config, "proof")


def all_but(cases: Iterable, *kept) -> list:
    """Returns the cases for `parametrize`; all but the kept ones are marked as proofs.

    A tuple holds the values of several arguments. So a case whose one value is a tuple is given as
    (value,).

    Raises:
        ValueError: A kept case does not exist.
    """
    cases = list(cases)
    if missing := [case for case in kept if case not in cases]:
        raise ValueError(f"no such case: {missing}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in kept else pytest.mark.proof,
        )
        for case in cases
    ]
