"""The fake cloud of these tests."""

import pytest

from tests.launch import clouds


@pytest.fixture
def cloud(tmp_path):
    made = clouds.Cloud(tmp_path)
    yield made
    made.tpu_vm("delete")  # ends what still runs on its hosts
