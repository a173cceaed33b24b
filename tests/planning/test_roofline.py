"""Bounds on a step: by hand, and by the formulas of what a device does; numbers for people."""

import pytest

from bertjax import config, experiment, sharding
from bertjax import phases as phases_lib
from bertjax.planning import memory, report, roofline
from bertjax.runtime import hardware

CHIP = hardware.Chip("toy", ("Toy",), 100.0, 1000, 10.0, 5.0, 1.0)
V5E = hardware.parse_topology("v5e-8")


def test_the_slowest_of_them_bounds_the_step():
    line = roofline.roofline(200.0, 50.0, 5.0, CHIP, model_flops_per_device=150.0)
    assert line.terms == {"compute": 2.0, "memory": 5.0, "interconnect": 1.0, "network": 0.0}
    assert line.step_s == 5.0 and line.bound_by == "memory"
    assert line.mfu_bound == pytest.approx(150 / 100 / 5)
    assert roofline.roofline(1.0, 1.0, 1.0, CHIP, dcn_bytes_per_device=9.0).bound_by == "network"


def test_what_is_not_known_bounds_nothing():
    cpu = hardware.CHIPS["cpu"]
    line = roofline.roofline(200.0, 50.0, 0.0, cpu)
    assert line.step_s is None and line.mfu_bound is None and line.bound_by == "unknown"
    v4 = roofline.roofline(275e12, 0.0, 0.0, hardware.CHIPS["v4"], dcn_bytes_per_device=1.0)
    assert v4.step_s == 1.0 and "network" not in v4.terms


def _config(**overrides):
    conf = config.smoke(config.default())
    for key, value in overrides.items():
        config.override(conf, key.replace("__", "."), str(value))
    return conf


def _work(conf, mesh, topology=V5E):
    sizes = sharding.mesh_sizes(mesh, topology.num_devices, topology.num_slices)
    return roofline.work(phases_lib.of(conf)[0], sizes)


def _gradients(conf, mesh="data:8"):
    sizes = sharding.mesh_sizes(mesh, 8)
    return memory.state_bytes(experiment.Experiment(conf), sizes)["gradients"]


def test_flops_are_those_of_the_model_and_of_what_is_computed_again():
    conf = _config()
    whole = conf.batch_size * experiment.Experiment(conf).flops_per_sequence(conf.data.length)
    none, dots, full = (_work(_config(remat=name), "data:8") for name in ("none", "dots", "full"))
    assert none.flops == none.model_flops == dots.model_flops == pytest.approx(whole / 8)
    assert full.flops == pytest.approx(4 / 3 * full.model_flops)
    assert none.flops < dots.flops < full.flops


def test_muon_adds_the_products_of_the_layers_of_a_device():
    adamw, muon = _work(_config(), "data:8"), _work(_config(optimizer__name="muon"), "data:8")
    assert muon.model_flops == adamw.model_flops
    model = _config().model
    width, inner = model.hidden_size, model.intermediate_size
    products = 4 * (6 * width**3) + 2 * (4 * width**2 * inner + 2 * width**3)
    layers = -(-model.num_layers // 8)
    assert muon.flops - adamw.flops == pytest.approx(5 * layers * products)
    one = _work(_config(optimizer__name="muon"), "data:1", hardware.parse_topology("v5e-1"))
    assert one.flops - one.model_flops == pytest.approx(5 * model.num_layers * products)


def test_data_sums_gradients_once_and_fsdp_gathers_weights():
    conf = _config()
    gradients = _gradients(conf)
    # In bfloat16: the gradients are sent and received; or the weights twice, and the gradients.
    assert _work(conf, "data:8").ici_bytes == pytest.approx(7 / 8 * gradients)
    assert _work(conf, "fsdp:8").ici_bytes == pytest.approx(7 / 8 * 3 / 2 * gradients)
    assert _work(conf, "data:1", hardware.parse_topology("v5e-1")).ici_bytes == 0


def test_micro_batches_gather_again_and_are_summed_once_in_float32():
    def sent(micro_batch_size, mesh):
        return _work(_config(batch_size=32, micro_batch_size=micro_batch_size), mesh).ici_bytes

    assert sent(8, "fsdp:8") == pytest.approx(4 * sent(0, "fsdp:8"))
    assert sent(8, "data:8") == sent(16, "data:8") == pytest.approx(2 * sent(0, "data:8"))
    two = hardware.parse_topology("2xv5e-8")
    whole, parts = (_config(batch_size=32, micro_batch_size=n) for n in (0, 16))
    network = _work(parts, "data:8", two).dcn_bytes
    assert network == pytest.approx(2 * _work(whole, "data:8", two).dcn_bytes)


def test_traffic_is_that_of_weights_gradients_optimizer_and_activations():
    def traffic(mesh, topology=V5E, **overrides):
        conf = _config(dtype="bfloat16", **overrides)
        phase, sizes = phases_lib.of(conf)[0], sharding.mesh_sizes(mesh, topology.num_devices)
        saved = memory.activation_bytes(phase, sizes) * phase.micro_batches
        return _work(conf, mesh, topology).hbm_bytes - roofline.ACTIVATION_PASSES * saved

    params = _gradients(_config())  # in float32; Adam's moments are twice as large
    updates = 2 * 3 * params
    # Two reads of the weights in bfloat16; gradients written, summed over devices and read.
    assert traffic("data:8") == pytest.approx(params + updates + 4 * params, rel=1e-3)
    one = traffic("data:1", hardware.parse_topology("v5e-1"))
    assert one == pytest.approx(params + updates + 2 * params, rel=1e-3)
    halves = traffic("data:8", batch_size=16, micro_batch_size=8)
    assert halves == pytest.approx(2 * params + updates + (2 * 4 + 3) * params, rel=1e-3)
    shard = _gradients(_config(), "fsdp:8")
    assert shard < params / 4
    assert traffic("fsdp:8") == pytest.approx(2 * params + (2 * 3 + 4) * shard, rel=1e-3)


def test_tensor_sends_activations_and_sequence_keys_and_values():
    conf = _config()
    tokens = conf.batch_size // 4 * conf.data.length * conf.model.hidden_size * 2
    by_tensor = _work(conf, "data:4,tensor:2").ici_bytes
    assert by_tensor > conf.model.num_layers * 4 * tokens
    by_sequence = _work(conf, "data:4,sequence:2").ici_bytes
    assert by_sequence > conf.model.num_layers * 2 * tokens


def test_slices_sum_gradients_over_the_network():
    two = hardware.parse_topology("2xv5e-8")
    conf = _config()
    for mesh, sums_it in (("data:8", 8), ("fsdp:8", 1)):
        found, one = _work(conf, mesh, two), _work(conf, mesh)
        assert found.dcn_bytes == pytest.approx(_gradients(conf, mesh) / 2 / sums_it)
        assert found.ici_bytes == one.ici_bytes
    assert _work(conf, "data:8").dcn_bytes == 0


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 "), (999.9, "1 k"), (1234, "1.23 k"), (0.0042, "4.2 m"), (5, "5 ")]
)
def test_numbers_for_people(number, text):
    assert report.si(number) == text
