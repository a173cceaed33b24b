"""What users are told."""

import errno
import os

import pytest

from bertjax import errors


def test_several_names_are_cut_after_the_first_ones():
    assert errors.several([]) == ""
    assert errors.several(["a", "b"], 2) == "a, b"
    assert errors.several("abc", 2) == "a, b and 1 more"
    assert errors.several(map(str, range(1013)), 3) == "0, 1, 2 and 1,010 more"


def test_one_thing_is_singular():
    assert [errors.count(n, "step") for n in (0, 1, 2, 1000)] == [
        "0 steps", "1 step", "2 steps", "1,000 steps"
    ]  # fmt: skip


def test_a_file_to_write_needs_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (None, "", "out.json", str(tmp_path / "out.json")):
        errors.file_to_write("json", path)
    with pytest.raises(errors.UserError, match="the parent folder does not exist"):
        errors.file_to_write("json", "no/out.json")


def test_a_disk_that_fails_is_no_bug():
    for number in (errno.ENOSPC, errno.EIO):
        assert errors.exit_code(OSError(number, os.strerror(number))) == errors.EXIT_BAD_INPUT
    assert errors.exit_code(OSError(errno.EBADF, "a bug of ours")) == errors.EXIT_BUG
