"""Resolves `config.mesh = "auto"`: the mesh with the least communication that fits in memory."""

from collections.abc import Iterator

import jax
import ml_collections

from bertjax import phases as phases_lib
from bertjax import sharding
from bertjax.planning import memory
from bertjax.runtime import hardware

MAX_TENSOR = 8  # above this, a device's matrices are too narrow for its matmul units


def meshes(
    config: ml_collections.ConfigDict, num_devices: int, num_slices: int = 1
) -> Iterator[dict[str, int]]:
    """Yields the sizes of all valid meshes, by ascending size of `tensor`, then of `fsdp`.

    In a valid mesh, `slice` * `data` * `fsdp` divides the batch size of every forward pass, and
    `tensor` divides the number of heads and is at most MAX_TENSOR. `sequence` is always 1, and
    `slice` is `num_slices`.
    """
    batches = [phase.forward_size for phase in phases_lib.of(config)]
    slice_devices = num_devices // num_slices
    for tensor in _divisors(slice_devices):
        rows = slice_devices // tensor
        if tensor > MAX_TENSOR or config.model.num_heads % tensor:
            continue
        if any(batch % (num_slices * rows) for batch in batches):
            continue
        for fsdp in _divisors(rows):
            yield {
                "slice": num_slices, "data": rows // fsdp, "fsdp": fsdp, "tensor": tensor,
                "sequence": 1,
            }  # fmt: skip


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def text(sizes: dict[str, int]) -> str:
    """Returns the mesh in the format of `config.mesh`, without axes of size 1: "data:2,fsdp:8"."""
    axes = [f"{axis}:{size}" for axis, size in sizes.items() if size > 1]
    return ",".join(axes) or "data:1"


def choose(
    config: ml_collections.ConfigDict,
    num_devices: int,
    hbm_bytes: int | None,
    platform: str = "tpu",
    num_slices: int = 1,
) -> str:
    """Returns the mesh for `num_devices` devices, in the format of `config.mesh`.

    It is the first of `meshes` that fits according to `memory.on_mesh`. If none fits, it is the
    mesh that needs the least memory. If there is no valid mesh, all devices of a slice are on the
    axis `data`; the run then raises an error that names the sizes that cannot be divided.
    hbm_bytes: the memory of a device; None means no limit. num_slices: see
    `sharding.hardware_slices`.
    """
    best = None
    for sizes in meshes(config, num_devices, num_slices):
        if hbm_bytes is None:
            return text(sizes)
        estimate = memory.on_mesh(config, sizes, platform, hbm_bytes)
        if estimate.fits:
            return text(sizes)
        if best is None or estimate.total < best[0]:
            best = estimate.total, sizes
    return text(best[1] if best else {"slice": num_slices, "data": num_devices // num_slices})


def mesh_of(config: ml_collections.ConfigDict, devices: list[jax.Device]) -> str:
    """Returns `config.mesh` or, if it is "auto", the mesh chosen for these devices."""
    if config.mesh != "auto":
        return config.mesh
    limit, slices = _memory_limit(devices[0]), sharding.hardware_slices(devices) or 1
    return choose(config, len(devices), limit, devices[0].platform, slices)


def _memory_limit(device: jax.Device) -> int | None:
    """Returns the bytes that a program may use; None if unknown, or if the device is a CPU."""
    if device.platform == "cpu":
        return None
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    chip = hardware.chip_of(device.device_kind)
    return chip.hbm_bytes if chip else None
