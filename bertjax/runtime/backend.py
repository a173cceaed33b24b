"""Process settings: flags that XLA reads when the first device is used, and for the C library."""

import importlib.metadata
import importlib.util
import os
import pathlib
import sys

# With these flags bfloat16 matmuls use a CPU's matrix units; they slow float32 down. They exist
# from jaxlib 0.12 on, and XLA aborts the process for an unknown flag.
_CPU_BFLOAT16 = (
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=reduce",
    "--xla_cpu_use_xnnpack=false",
)
# LLVM's first optimization level: a train step mostly compiles in 65 to 90% of the CPU time. It
# runs as fast, since it is bound by matmuls and memory.
_CPU = ("--xla_backend_optimization_level=1",)

_HUGE_PAGES = "glibc.malloc.hugetlb"
_KERNEL_HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _has_accelerator() -> bool:
    # Does not call jax, which would start the backend. Accelerator plugins register entry points.
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return False
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return bool(plugins) or importlib.util.find_spec("libtpu") is not None


def configure(dtype: str) -> None:
    """Adds the flags for a compute dtype to XLA_FLAGS if there is no accelerator.

    Flags that the user has set are not changed. NOTE: call it before jax uses a device.
    """
    if _has_accelerator():
        return
    version = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
    flags = _CPU + _CPU_BFLOAT16 * (dtype == "bfloat16" and version >= (0, 12))
    present = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in flags if flag.split("=")[0] not in present]
    os.environ["XLA_FLAGS"] = " ".join([present, *missing]).strip()


def start_with_huge_pages() -> None:
    """Re-executes this program in the same process with memory pages of 2 MiB, on Linux CPUs.

    A train step on a CPU allocates and frees hundreds of megabytes. With pages of 4 KiB the kernel
    takes a third of the step for that. glibc (2.35 on) reads the setting only when a program
    starts. NOTE: call it before anything is imported or written. Does not change a user's setting.
    """
    present = os.environ.get("GLIBC_TUNABLES", "")
    if _HUGE_PAGES in present or not sys.platform.startswith("linux") or _has_accelerator():
        return
    if not (_KERNEL_HUGE_PAGES.exists() and "[madvise]" in _KERNEL_HUGE_PAGES.read_text()):
        return  # "always" or "never": the setting would have no effect
    tunables = ":".join(filter(None, [present, f"{_HUGE_PAGES}=1"]))
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "GLIBC_TUNABLES": tunables})
