"""Peaks of chips, and names of slices as Google and others write them."""

import math

import pytest

from bertjax import errors
from bertjax.runtime import hardware


@pytest.mark.parametrize(
    ("name", "devices", "chips", "hosts", "libtpu"),
    [
        ("v5e-1", 1, 1, 1, {"topology_name": "v5e:1x1", "chips_per_host_bounds": (1, 1, 1)}),
        ("v5e-8", 8, 8, 1, {"topology_name": "v5e:2x4"}),
        ("v5litepod-16", 16, 16, 4, {"topology_name": "v5e:4x4"}),
        ("v6e-256", 256, 256, 64, {"topology_name": "v6e:16x16"}),
        ("v2-8", 8, 4, 1, {"topology_name": "v2:2x2"}),
        ("v3-32", 32, 16, 4, {"topology_name": "v3:4x4"}),
        ("v4-8", 4, 4, 1, {"topology_name": "v4:2x2x1", "chip_config_name": "megacore"}),
        ("v5p-128", 64, 64, 16, {"topology_name": "v5p:4x4x4"}),
        ("tpu7x-128", 128, 64, 16, {"topology_name": "tpu7x:4x4x4"}),
        ("2xv5e-256", 512, 512, 128, {"topology_name": "v5e:16x16", "num_slices": 2}),
        ("h100-16", 16, 16, 2, {}),
        ("a100-80gb-8", 8, 8, 1, {}),
        ("cpu-64", 64, 64, 1, {}),
    ],
)
def test_names_of_slices(name, devices, chips, hosts, libtpu):
    topology = hardware.parse_topology(name)
    assert (topology.num_devices, topology.num_chips, topology.num_hosts) == (devices, chips, hosts)
    assert topology.libtpu == libtpu


def test_each_size_of_a_kind_is_a_slice_with_as_many_chips_as_it_says():
    for chip in hardware.CHIPS.values():
        if chip.platform == "tpu":
            cores = 1 if chip.name in ("v5e", "v6e") else 2
            for name in hardware.sizes(chip.name):
                topology = hardware.parse_topology(name)
                assert topology.num_chips * cores == int(name.split("-")[1])
                assert math.prod(topology.shape) == topology.num_chips


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v5e-12", "must be one of v5e-1, v5e-4, v5e-8, v5e-16"),
        ("v5p-64x", 'must be a name such as "v5e-16"'),
        ("v9-8", "of v2, v3, v4, v5e"),
        ("v5e:4x4", 'must be a name such as "v5e-16"'),
        ("2xh100-8", "only TPUs come in slices"),
    ],
)
def test_other_names_are_refused_with_those_there_are(name, said):
    with pytest.raises(errors.UserError) as caught:
        hardware.parse_topology(name)
    assert f"config.topology = {name!r}: " in str(caught.value) and said in str(caught.value)


def test_figures_are_those_of_a_device():
    v3, v5e, seven = (hardware.CHIPS[name] for name in ("v3", "v5e", "tpu7x"))
    assert 2 * v3.peak_flops == 123e12 and 2 * seven.peak_flops == 2307e12
    assert 2 * v5e.ici_bandwidth == 400e9, "their figure is of both directions"
    assert hardware.CHIPS["cpu"].peak_flops is None


def test_chips_are_found_by_the_names_that_jax_has_for_them():
    kinds = [kind for chip in hardware.CHIPS.values() for kind in chip.kinds]
    assert len(set(kinds)) == len(kinds)
    assert hardware.chip_of("TPU v5 lite").name == "v5e"
    assert hardware.chip_of("TPU v5").name == "v5p"
    assert hardware.chip_of("Radeon") is None
