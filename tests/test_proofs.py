"""Proofs stay out of a run unless they are asked for."""

import pytest

from tests.helpers import proofs

pytest_plugins = ["pytester"]

CONFTEST = """
from tests.helpers import proofs

pytest_addoption = proofs.add_options
pytest_configure = proofs.configure
"""
TESTS = """
import pytest

from tests.helpers import proofs


@pytest.mark.proof
def test_long():
    pass


@pytest.mark.parametrize("case", proofs.all_but("abc", "b"))
def test_cases(case):
    pass
"""


@pytest.mark.parametrize(
    ("args", "passed"),
    [((), 1), (("--proofs",), 4), (("-m", "proof"), 3), (("-k", "long"), 0),
     (("test_it.py::test_long",), 1)],
)  # fmt: skip
def test_which_tests_run(pytester, args, passed):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *args)
    assert result.parseoutcomes().get("passed", 0) == passed


def test_a_case_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match="no such case"):
        proofs.all_but("abc", "d")
