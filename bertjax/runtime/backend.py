"""Settings of the process: XLA flags, and pages of memory."""

import importlib.metadata
import importlib.util
import os
import pathlib
import sys

# With these flags bfloat16 matmuls use a CPU's instructions for it. For float32 the flags make a
# step slower. They exist from jaxlib 0.12 on, and XLA aborts the process if a flag is unknown.
# NOTE: on a CPU without such instructions, the first two flags together give wrong gradients
# (jaxlib 0.12.0.1, AMD EPYC with AVX2).
_CPU_BFLOAT16_FLAGS = (
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=reduce",
    "--xla_cpu_use_xnnpack=false",
)
# At LLVM's optimization level 1, compiling a train step mostly takes 65 to 90% of the CPU time that
# it takes at the default level. The step is as fast, since it is limited by matmuls and memory.
_CPU_FLAGS = ("--xla_backend_optimization_level=1",)

_HUGE_PAGES = {"glibc.malloc.hugetlb": 1}
# Freed memory stays in the process. Only the arena that all threads share then, the first one, can
# grow to gigabytes.
_KEPT_MEMORY = {
    "glibc.malloc.arena_max": 1,
    "glibc.malloc.mmap_threshold": 2**36,
    "glibc.malloc.trim_threshold": 2**36,
}
_CPU_INFO = pathlib.Path("/proc/cpuinfo")
_BFLOAT16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}
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
    flags = _CPU_FLAGS
    if dtype == "bfloat16" and _has_bfloat16_flags():
        flags += _CPU_BFLOAT16_FLAGS
    user_flags = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in flags if flag.split("=")[0] not in user_flags]
    os.environ["XLA_FLAGS"] = " ".join([user_flags, *missing]).strip()


def _has_bfloat16_flags() -> bool:
    """Returns whether jaxlib has the flags for bfloat16, and the CPU the instructions for it."""
    version = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
    if version < (0, 12) or not _CPU_INFO.exists():
        return False
    return not _BFLOAT16_INSTRUCTIONS.isdisjoint(_CPU_INFO.read_text().split())


def start_with_kept_memory() -> None:
    """Restarts this program in the same process, with large pages of memory that it keeps.

    Does nothing if the system is not Linux, if there is an accelerator, or if the user has set one
    of these options of glibc. The pages have 2 MiB if the kernel lets a program choose.

    A train step on a CPU allocates and frees gigabytes. The kernel clears each page before a
    process gets it: pages of 4 KiB cost a third of the step's time, and pages of 2 MiB that are
    returned after each step cost 3 to 9% on a quiet machine and 10 to 16% on a busy one
    (benchmarks/README.md, section train_step.py). glibc (from 2.35 on) reads the options only when
    a program starts. NOTE: must be called before anything is imported or written.
    """
    user_options = os.environ.get("GLIBC_TUNABLES", "")
    if not sys.platform.startswith("linux") or has_accelerator():
        return
    if any(name in user_options for name in _HUGE_PAGES | _KEPT_MEMORY):
        return
    options = ":".join(filter(None, [user_options, memory_options()]))
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "GLIBC_TUNABLES": options})


def memory_options() -> str:
    """Returns the options for GLIBC_TUNABLES with which `start_with_kept_memory` restarts."""
    has_choice = _KERNEL_HUGE_PAGES.exists() and "[madvise]" in _KERNEL_HUGE_PAGES.read_text()
    options = _KEPT_MEMORY | (_HUGE_PAGES if has_choice else {})
    return ":".join(f"{name}={value}" for name, value in options.items())
