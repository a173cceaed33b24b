"""What all tests share: eight virtual CPU devices and the folder of real data, where there is one."""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    ).strip()

import pytest  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Folder of real corpora and oracles; the tests that need it are skipped where it is absent."""
    folder = pathlib.Path(
        os.environ.get("BERTJAX_TEST_DATA", ROOT.parent / "shared" / "data")
    )
    if not folder.is_dir():
        pytest.skip(f"no data folder {folder}; set BERTJAX_TEST_DATA to run this test")
    return folder
