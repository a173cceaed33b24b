"""Lists peak figures of accelerators, and parses slice names such as "v5e-16".

    >>> slice_ = parse_topology("v5e-16")
    >>> slice_.chip.peak_flops, slice_.num_devices, slice_.libtpu["topology_name"]
    (197000000000000.0, 16, 'v5e:4x4')

A device is one jax device: half a chip on TPU v2, v3 and 7x, otherwise a chip. All figures are per
device. Sources:

    TPUs             docs.cloud.google.com/tpu/docs/{v2,v3,v4,v5e,v5p,v6e,tpu7x}
    links of v2, v3  Jouppi et al., "A domain-specific supercomputer for training deep neural
                     networks", CACM 63(7), table 3
    links of v4      arXiv 2304.01433, table 4
    GPUs             NVIDIA's data sheets of A100, H100, H200 (SXM parts) and HGX B200, without
                     sparsity
"""

import dataclasses
import math
import re
from typing import Any

from bertjax import errors

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Peak figures of a device; a figure that is not published is None.

    kinds: the values of jax's `device_kind` for this device. peak_flops: FLOP/s of dense bfloat16
    matmuls.
    hbm_bytes: memory that a program may use, as reported for TPUs by the compiler of libtpu 0.0.42
    and for GPUs by nvidia-smi. NOTE: jax uses only 3/4 of a GPU's memory, or the share in
    XLA_PYTHON_CLIENT_MEM_FRACTION.
    hbm_bandwidth: bytes/s. ici_bandwidth: bytes/s that a device can send to its neighbours over all
    its links (TPU interconnect, NVLink), which is half of the "bidirectional" figure of data
    sheets. dcn_bandwidth: bytes/s that a device can send to other slices, or to other GPU hosts.
    """

    name: str
    kinds: tuple[str, ...]
    peak_flops: float | None
    hbm_bytes: int | None
    hbm_bandwidth: float | None
    ici_bandwidth: float | None
    dcn_bandwidth: float | None
    devices_per_chip: int = 1
    devices_per_host: int = 8
    lone_host: int = 8  # largest number of devices in a slice of a single host

    @property
    def platform(self) -> str:
        """Returns the jax platform: tpu, gpu or cpu."""
        return "tpu" if self.name in _SHAPES else "cpu" if self.name == "cpu" else "gpu"


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v2", ("TPU v2",), 22.5e12, int(7.48 * GIB), 300e9, 124e9, None, devices_per_chip=2),
        Chip("v3", ("TPU v3",), 61.5e12, int(15.48 * GIB), 450e9, 164e9, None, devices_per_chip=2),
        Chip("v4", ("TPU v4",), 275e12, int(30.75 * GIB), 1200e9, 300e9, None, devices_per_host=4,
             lone_host=4),
        Chip("v5e", ("TPU v5 lite", "TPU v5e"), 197e12, int(15.75 * GIB), 819e9, 200e9, 3.125e9,
             devices_per_host=4),
        Chip("v5p", ("TPU v5", "TPU v5p"), 459e12, int(95.74 * GIB), 2765e9, 600e9, 6.25e9,
             devices_per_host=4, lone_host=4),
        Chip("v6e", ("TPU v6 lite", "TPU v6e"), 918e12, int(31.25 * GIB), 1638e9, 400e9, 12.5e9,
             devices_per_host=4),
        Chip("tpu7x", ("TPU7x",), 1153.5e12, int(94.75 * GIB), 3690e9, 300e9, 6.25e9,
             devices_per_chip=2),
        Chip("a100-40gb", ("NVIDIA A100-SXM4-40GB",), 312e12, 39 * GIB, 1555e9, 300e9, 25e9),
        Chip("a100-80gb", ("NVIDIA A100-SXM4-80GB",), 312e12, 80 * GIB, 2039e9, 300e9, 25e9),
        Chip("h100", ("NVIDIA H100 80GB HBM3",), 989e12, 79 * GIB, 3350e9, 450e9, 50e9),
        Chip("h200", ("NVIDIA H200",), 989e12, 140 * GIB, 4800e9, 450e9, 50e9),
        Chip("b200", ("NVIDIA B200",), 2250e12, 179 * GIB, 7700e9, 900e9, 50e9),
        Chip("cpu", ("cpu",), None, None, None, None, None, lone_host=2**31),
    )
}  # fmt: skip

# Shapes of slices, in chips. If several shapes have the same size, only the most cube-like is here.
_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_CUBES = (
    (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8),
    (8, 8, 12), (8, 8, 16), (8, 16, 16),
)  # fmt: skip
_BIG_CUBES = (*_CUBES, (16, 16, 16))
_SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "v2": ((2, 2), (4, 4), (8, 8), (8, 16), (16, 16)),
    "v3": ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32)),
    "v4": _CUBES,
    "v5e": _FLAT,
    "v5p": (*_BIG_CUBES, (16, 16, 24)),
    "v6e": _FLAT,
    "tpu7x": ((1, 1, 1), *_BIG_CUBES),
}
# Slices of these chips are named by the number of TensorCores, two per chip; others by chips.
_NAMED_BY_CORES = ("v2", "v3", "v4", "v5p", "tpu7x")
_ALIASES = {"v5litepod": "v5e", "v6litepod": "v6e"}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice, or several equal slices joined by the data-centre network.

    name: the name that was parsed. shape: the chips of one slice along each axis; () for GPUs and
    CPUs. num_devices: in all slices.
    """

    name: str
    chip: Chip
    num_devices: int
    shape: tuple[int, ...] = ()
    num_slices: int = 1

    @property
    def num_chips(self) -> int:
        """Returns the number of chips, by which the provider charges."""
        return self.num_devices // self.chip.devices_per_chip

    @property
    def num_hosts(self) -> int:
        """Returns the number of virtual machines; each runs one process.

        If a TPU slice is larger than one host, each of its machines has four chips.
        """
        single_host = self.num_slices == 1 and self.num_devices <= self.chip.lone_host
        return 1 if single_host else -(-self.num_devices // self.chip.devices_per_host)

    @property
    def libtpu(self) -> dict[str, Any]:
        """Returns the arguments for jax's `get_topology_desc`; {} unless the chip is a TPU."""
        if not self.shape:
            return {}
        arguments: dict[str, Any] = {
            "topology_name": f"{self.chip.name}:{'x'.join(map(str, self.shape))}"
        }
        if self.chip.name == "v4":  # the two TensorCores are one device, as on a TPU VM
            arguments["chip_config_name"] = "megacore"
        if math.prod(self.shape) == 1:
            arguments["chips_per_host_bounds"] = (1, 1, 1)
        if self.num_slices > 1:
            arguments["num_slices"] = self.num_slices
        return arguments


def sizes(chip_name: str) -> list[str]:
    """Returns the names of all slices of a TPU, from small to large."""
    factor = 2 if chip_name in _NAMED_BY_CORES else 1
    return [f"{chip_name}-{factor * math.prod(shape)}" for shape in _SHAPES[chip_name]]


def parse_topology(name: str, key: str = "topology") -> Topology:
    """Parses names such as "v5e-16", "h100-8", "cpu-8" or, for two slices, "2xv5e-256".

    For TPUs they are the names of Google's accelerator types. The number after the "-" is

        for v2, v3, v4, v5p and tpu7x: the number of TensorCores (v5p-128 has 64 chips)
        for v5e (also v5litepod) and v6e: the number of chips
        for GPUs and CPUs: the number of devices

    Raises UserError naming config.`key` if the name is invalid.
    """
    match = re.fullmatch(r"(?:([1-9]\d*)x)?(\w+(?:-\d+gb)?)-([1-9]\d*)", name)
    kind = match and _ALIASES.get(match[2], match[2])
    if not match or kind not in CHIPS:
        errors.check(False, key, name,
                     'a name such as "v5e-16", "2xv5e-256" (two slices), "h100-8" or "cpu-8", with '
                     'a chip of '
                     + ", ".join(CHIPS))  # fmt: skip
    chip, slices, size = CHIPS[kind], int(match[1] or 1), int(match[3])
    if kind not in _SHAPES:
        errors.check(slices == 1, key, name, "a single number of devices, because only TPUs come "
                                             "in slices")
        return Topology(name, chip, size)
    names = sizes(kind)
    errors.check(f"{kind}-{size}" in names, key, name, f"one of {', '.join(names)}")
    shape = _SHAPES[kind][names.index(f"{kind}-{size}")]
    devices = slices * math.prod(shape) * chip.devices_per_chip
    return Topology(name, chip, devices, shape, slices)


def chip_of(device_kind: str) -> Chip | None:
    """Returns the chip with this jax `device_kind`; None if it is not in the table."""
    return next((chip for chip in CHIPS.values() if device_kind in chip.kinds), None)
