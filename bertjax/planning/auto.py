"""Resolves `config.mesh = "auto"`: the mesh of the shortest run among those that fit in memory.

Nothing is compiled: memory and time are those of `memory.on_mesh` and `roofline.run_seconds`, which
take about 20 ms per mesh. `benchmarks/README.md` compares their choices with compiled steps.
"""

from collections.abc import Iterator

import jax
import ml_collections

from bertjax import phases as phases_lib
from bertjax import sharding
from bertjax.planning import memory, roofline
from bertjax.runtime import hardware

MAX_TENSOR = 8  # above this, a device's matrices are too narrow for its matmul units
TOLERANCE = 0.02  # a time this much above the shortest is as good: the estimate is no more exact


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
    chip: hardware.Chip | None = None,
) -> str:
    """Returns the mesh for `num_devices` devices, in the format of `config.mesh`.

    Of the `meshes` that fit according to `memory.on_mesh`, it is the first whose run takes at most
    TOLERANCE longer than the shortest according to `roofline.run_seconds`. The first ones send the
    least, so a mesh that splits the state more is chosen only if it saves time. `tensor` is 1 if
    such a mesh fits: the sums over `tensor` wait for the products of a layer, and the next products
    wait for them, which a bound ignores. If the peak of the chip is unknown, it is the first mesh
    that fits.

    If none fits, it is the mesh that needs the least memory. If there is no valid mesh, all devices
    of a slice are on the axis `data`; the run then raises an error that names the sizes that cannot
    be divided.
    hbm_bytes: the memory of a device; None means no limit. num_slices: see
    `sharding.hardware_slices`. chip: the kind of the devices; None if it is unknown.
    """
    fitting, needs = [], []
    for sizes in meshes(config, num_devices, num_slices):
        if sizes["tensor"] > 1 and any(one["tensor"] == 1 for _, one in fitting):
            break
        if hbm_bytes is not None:
            estimate = memory.on_mesh(config, sizes, platform, hbm_bytes)
            needs.append((estimate.total, text(sizes)))
            if not estimate.fits:
                continue
        if chip is None or not chip.peak_flops:
            return text(sizes)
        fitting.append((roofline.run_seconds(config, sizes, chip), sizes))
    if fitting:
        limit = (1 + TOLERANCE) * min(seconds for seconds, _ in fitting)
        return next(text(sizes) for seconds, sizes in fitting if seconds <= limit)
    only_data = text({"slice": num_slices, "data": num_devices // num_slices})
    return min(needs, default=(0, only_data))[1]


def mesh_of(config: ml_collections.ConfigDict, devices: list[jax.Device]) -> str:
    """Returns `config.mesh` or, if it is "auto", the mesh chosen for these devices."""
    if config.mesh != "auto":
        return config.mesh
    limit, slices = _memory_limit(devices[0]), sharding.hardware_slices(devices) or 1
    chip = hardware.chip_of(devices[0].device_kind)
    return choose(config, len(devices), limit, devices[0].platform, slices, chip)


def _memory_limit(device: jax.Device) -> int | None:
    """Returns the bytes that a program may use; None if unknown, or if the device is a CPU."""
    if device.platform == "cpu":
        return None
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    chip = hardware.chip_of(device.device_kind)
    return chip.hbm_bytes if chip else None
