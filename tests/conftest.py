"""What all tests share: eight virtual CPU devices, quick compiles, the folder of real data."""

import gc
import importlib.metadata
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What a test compiles runs for milliseconds: compiling takes the time, and less of it like this.
_FLAGS = ["--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    _FLAGS += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
for flag in _FLAGS:
    if flag.split("=")[0] not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Tracing makes objects by the million which die at once: looking for dead ones took up to a fifth
# of the time of files that trace much.
gc.set_threshold(50_000, 20, 100)
# What was compiled once, in any process, is not compiled again: small programs too, since eager
# operations make hundreds of them.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax  # noqa: E402
import pytest  # noqa: E402

from tests.helpers import proofs, slow_tests  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")  # axes added in silence hide wrong shapes

def pytest_addoption(parser):
    slow_tests.add_options(parser)
    proofs.add_options(parser)
    parser.addoption("--kill-step", type=int, help="for the test of a kill at a random step")


def pytest_configure(config):
    slow_tests.configure(config)
    proofs.configure(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    slow_tests.mark(items)


@pytest.fixture(scope="module", autouse=True)
def _few_compiled_programs(request):
    # Each takes hundreds of memory maps, and Linux gives a process 65,530 of them: beyond that it
    # ends in a segmentation fault.
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        for each in vars(request.module).values():
            getattr(each, "cache_clear", lambda: None)()
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Folder of real corpora and oracles; the tests that need it are skipped where it is absent."""
    folder = pathlib.Path(
        os.environ.get("BERTJAX_TEST_DATA", ROOT.parent / "shared" / "data")
    )
    if not folder.is_dir():
        pytest.skip(f"no data folder {folder}; set BERTJAX_TEST_DATA to run this test")
    return folder
