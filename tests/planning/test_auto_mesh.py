"""The mesh that config.mesh = "auto" becomes."""

import jax
import pytest

from bertjax import config, errors, experiment, sharding
from bertjax.planning import auto, memory, roofline
from bertjax.runtime import hardware


def _config(**overrides):
    conf = config.smoke(config.default())
    conf.model.vocab_size = 200
    for key, value in overrides.items():
        config.override(conf, key.replace("__", "."), str(value))
    return conf


def _needs(conf, text, devices=8):
    return memory.on_mesh(conf, sharding.mesh_sizes(text, devices), "tpu", None).total


def test_splits_the_state_no_more_than_memory_asks():
    conf = _config(model__num_layers=8)
    texts = ["data:8", "data:4,fsdp:2", "data:2,fsdp:4", "fsdp:8"]
    needs = [_needs(conf, text) for text in texts]
    assert sorted(needs, reverse=True) == needs
    for text, need in zip(texts, needs, strict=True):
        assert auto.choose(conf, 8, int(need / memory.MARGIN) + 1) == text


@pytest.mark.parametrize(
    ("batch_size", "devices", "chosen"),
    [(16, 8, "data:8"), (16, 1, "data:1"), (4, 8, "data:4,tensor:2"), (2, 4, "data:2,tensor:2")],
)
def test_divides_batch_and_heads(batch_size, devices, chosen):
    conf = _config(batch_size=batch_size, model__num_heads=2)
    assert auto.choose(conf, devices, None) == chosen


@pytest.mark.parametrize(
    ("batch_size", "chosen"),
    [(16, "slice:2,data:4"), (4, "slice:2,data:2,tensor:2"), (3, "slice:2,data:4")],
)
def test_several_slices_are_an_axis_of_their_own(batch_size, chosen):
    conf = _config(batch_size=batch_size, model__num_heads=2)
    assert auto.choose(conf, 8, None, num_slices=2) == chosen


def test_of_two_phases_both_batches_are_divided():
    conf = _config(phase2__num_steps=5, phase2__batch_size=4)
    assert auto.choose(conf, 8, None) == "data:4,tensor:2"


def test_what_nothing_divides_is_refused_by_the_run_with_the_numbers():
    conf = _config(batch_size=3)
    assert auto.choose(conf, 8, None) == "data:8"
    with pytest.raises(errors.UserError, match=r"config.batch_size = 3: must be a multiple"):
        experiment.check_mesh(conf, sharding.make_mesh("data:8"))


def test_where_nothing_fits_it_is_the_mesh_that_needs_least():
    conf = _config()
    chosen = auto.choose(conf, 8, 1)
    needs = {auto.text(sizes): _needs(conf, auto.text(sizes)) for sizes in auto.meshes(conf, 8)}
    assert needs[chosen] == min(needs.values())


def _chip(flops=1e12, hbm=1e15, links=1e15):
    return hardware.Chip("toy", ("Toy",), flops, None, hbm, links, None)


@pytest.mark.parametrize(
    ("chip", "chosen"),
    [
        (_chip(), "data:8"),  # compute takes as long on all meshes
        (_chip(hbm=1e9), "fsdp:8"),  # reading and writing the state takes the longest
        (_chip(links=1e6), "data:8"),  # fsdp sends more
        (None, "data:8"),
    ],
)
def test_the_fastest_mesh_by_the_estimate(chip, chosen):
    conf = _config(model__vocab_size=20_000, data__length=8)
    assert auto.choose(conf, 8, None, chip=chip) == chosen


def test_the_fastest_mesh_fits():
    conf, chip = _config(model__num_layers=8), _chip(links=1e6)
    for text in ("data:8", "data:4,fsdp:2", "data:2,fsdp:4", "fsdp:8"):
        limit = int(_needs(conf, text) / memory.MARGIN) + 1
        assert auto.choose(conf, 8, limit, chip=chip) == text


@pytest.mark.parametrize(
    ("name", "compiled"),
    [
        ("t5_v1_1_base", {"data:16": 0.0218, "data:8,fsdp:2": 0.0176}),
        ("electra_large", {"data:256": 0.0546, "data:128,fsdp:2": 0.0458}),
        ("mmbert_base", {"data:256": 0.1328, "data:64,fsdp:4": 0.1144, "data:8,fsdp:32": 0.1091}),
    ],
)
def test_the_estimate_orders_meshes_as_the_compiler_does(name, compiled):
    """Compares with the bounds in seconds of steps that libtpu compiled (benchmarks/README.md)."""
    conf = config.load(f"configs/{name}.py", {})
    where = hardware.parse_topology(conf.topology)
    estimated = {
        mesh: roofline.run_seconds(conf, sharding.mesh_sizes(mesh, where.num_devices), where.chip)
        for mesh in compiled
    }
    assert sorted(estimated, key=estimated.get) == sorted(compiled, key=compiled.get)
    chosen = auto.choose(
        conf, where.num_devices, where.chip.hbm_bytes, "tpu", where.num_slices, where.chip
    )
    assert chosen == min(compiled, key=compiled.get)


def test_a_mesh_that_is_named_stays():
    devices = jax.devices()
    assert auto.mesh_of(_config(mesh="fsdp:4,tensor:2"), devices) == "fsdp:4,tensor:2"
    assert config.default().mesh == "auto"
    assert auto.mesh_of(_config(mesh="auto"), devices) == "data:8"
