"""Describes the environment of this process: versions of the software, host system and devices.

    environment.describe()     # {"bertjax": "0.1.0", "python": "3.11.9", "jax": "0.10.2", ...}
"""

import importlib.metadata
import platform

import jax

_PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")


def describe() -> dict[str, str]:
    """Returns {name: version or description}. Starts jax's backend, to list the devices.

    Packages that are not installed are left out.
    """
    found = {"bertjax": _version("bertjax"), "python": platform.python_version()}
    found |= {name: _version(name) for name in _PACKAGES}
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["devices"] = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    found["processes"] = str(jax.process_count())
    return {name: value for name, value in found.items() if value}


def _version(package: str) -> str:
    """Returns the version of an installed package; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
