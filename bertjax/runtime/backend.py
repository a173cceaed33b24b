"""Settings of a process: those that XLA reads with the first device, and of the C library."""

import importlib.metadata
import importlib.util
import os
import pathlib
import sys

# bfloat16 matmuls on a CPU reach the matrix units only through these, which slow float32 down.
# They exist from jaxlib 0.12 on, and an unknown flag ends the process.
_CPU_BFLOAT16 = (
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=reduce",
    "--xla_cpu_use_xnnpack=false",
)
# LLVM's first level: a train step mostly compiles in 65 to 90% of the CPU time and is as fast, its
# time being that of matmuls and memory.
_CPU = ("--xla_backend_optimization_level=1",)

_HUGE_PAGES = "glibc.malloc.hugetlb"
_KERNEL_HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _has_accelerator() -> bool:
    # Without asking jax, which would start the backend: plugins register what they bring.
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return False
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return bool(plugins) or importlib.util.find_spec("libtpu") is not None


def configure(dtype: str) -> None:
    """Puts the flags for a compute type into XLA_FLAGS; call it before jax sees a device.

    What the user put there already is left as it is.
    """
    if _has_accelerator():
        return
    version = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
    flags = _CPU + _CPU_BFLOAT16 * (dtype == "bfloat16" and version >= (0, 12))
    present = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in flags if flag.split("=")[0] not in present]
    os.environ["XLA_FLAGS"] = " ".join([present, *missing]).strip()


def start_with_huge_pages() -> None:
    """Starts this program anew, in the same process, with memory in pages of 2 MiB, on Linux CPUs.

    A train step on a CPU allocates hundreds of megabytes and gives them back. In pages of 4 KiB the
    kernel's part of that is a third of the step. glibc (2.35 on) reads the setting at the start of
    a process only. Call it before anything is imported or written; a user's own setting is left.
    """
    present = os.environ.get("GLIBC_TUNABLES", "")
    if _HUGE_PAGES in present or not sys.platform.startswith("linux") or _has_accelerator():
        return
    if not (_KERNEL_HUGE_PAGES.exists() and "[madvise]" in _KERNEL_HUGE_PAGES.read_text()):
        return  # always or never: the setting changes nothing
    tunables = ":".join(filter(None, [present, f"{_HUGE_PAGES}=1"]))
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "GLIBC_TUNABLES": tunables})
