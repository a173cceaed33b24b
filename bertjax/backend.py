"""Settings that XLA reads once, when the first device is asked for."""

import importlib.metadata
import importlib.util
import os

# bfloat16 matmuls on a CPU reach the matrix units only through these, which slow float32 down.
# They exist from jaxlib 0.12 on, and an unknown flag ends the process.
_CPU_BFLOAT16 = (
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=reduce",
    "--xla_cpu_use_xnnpack=false",
)


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
    version = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
    if dtype != "bfloat16" or version < (0, 12) or _has_accelerator():
        return
    present = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in _CPU_BFLOAT16 if flag.split("=")[0] not in present]
    os.environ["XLA_FLAGS"] = " ".join([present, *missing]).strip()
