"""Settings of the process: XLA flags, and the size of memory pages."""

import importlib.metadata
import importlib.util
import os
import pathlib
import sys

# With these flags bfloat16 matmuls use a CPU's matrix units. For float32 the flags make a step
# slower. They exist from jaxlib 0.12 on, and XLA aborts the process if a flag is unknown.
_CPU_BFLOAT16_FLAGS = (
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=reduce",
    "--xla_cpu_use_xnnpack=false",
)
# At LLVM's optimization level 1, compiling a train step mostly takes 65 to 90% of the CPU time that
# it takes at the default level. The step is as fast, since it is limited by matmuls and memory.
_CPU_FLAGS = ("--xla_backend_optimization_level=1",)

_HUGE_PAGES = "glibc.malloc.hugetlb"
_KERNEL_HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def has_accelerator() -> bool:
    """Returns whether jax may use a TPU or GPU. Does not import jax, and starts no backend."""
    # jax's accelerator plugins have entry points.
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return False
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return bool(plugins) or importlib.util.find_spec("libtpu") is not None


def configure(dtype: str) -> None:
    """Adds XLA's CPU flags for a compute dtype to XLA_FLAGS if there is no accelerator.

    Flags that the user has set are not changed. NOTE: must be called before jax uses a device,
    because XLA reads the flags then.
    """
    if has_accelerator():
        return
    version = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
    flags = _CPU_FLAGS + _CPU_BFLOAT16_FLAGS * (dtype == "bfloat16" and version >= (0, 12))
    user_flags = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in flags if flag.split("=")[0] not in user_flags]
    os.environ["XLA_FLAGS"] = " ".join([user_flags, *missing]).strip()


def start_with_huge_pages() -> None:
    """Restarts this program in the same process with memory pages of 2 MiB.

    Does nothing if the system is not Linux, if there is an accelerator, if the user has set the
    page size, or if the kernel ignores the setting.

    A train step on a CPU allocates and frees hundreds of megabytes. With pages of 4 KiB, this costs
    the kernel a third of the step's time. glibc (from 2.35 on) reads the setting only when a
    program starts. NOTE: must be called before anything is imported or written.
    """
    user_tunables = os.environ.get("GLIBC_TUNABLES", "")
    if _HUGE_PAGES in user_tunables or not sys.platform.startswith("linux") or has_accelerator():
        return
    if not (_KERNEL_HUGE_PAGES.exists() and "[madvise]" in _KERNEL_HUGE_PAGES.read_text()):
        return  # "always" or "never": the setting would have no effect
    tunables = ":".join(filter(None, [user_tunables, f"{_HUGE_PAGES}=1"]))
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "GLIBC_TUNABLES": tunables})
