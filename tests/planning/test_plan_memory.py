"""What a step keeps on a device, against arrays that are there and by what it must depend on."""

import jax
import numpy as np
import pytest

from bertjax import config, experiment, plugins, sharding
from bertjax import phases as phases_lib
from bertjax.planning import memory
from bertjax.runtime import hardware
from tests.helpers import meshes, proofs

GIB = 2**30
OBJECTIVES = [(family, "") for family in plugins.families()] + [
    ("bert", "distillation"), ("gpt2", "prefix_lm"), ("t5", "denoisers"),
]  # fmt: skip


def _config(family="bert", objective="", **overrides):
    conf = config.smoke(config.default(family, "mini" if family == "gpt2" else "base", objective))
    conf.model.vocab_size = 200
    if "kind" in conf.objective:
        conf.objective.kind = plugins.family(family).KIND
    for key, value in overrides.items():
        config.override(conf, key.replace("__", "."), str(value))
    return conf


def _sizes(*shape):
    return sharding.mesh_sizes(meshes.text(*shape), 8)


def _kept(conf, *shape):
    return memory.activation_bytes(phases_lib.of(conf)[0], _sizes(*shape))


@pytest.mark.parametrize(
    ("family", "optimizer"), [("bert", "adamw"), ("t5", "adafactor"), ("bert", "muon")]
)
@pytest.mark.parametrize("shape", [(8,), (1, 8), (2, 2, 2), (1, 2, 2, 2)])
def test_state_is_counted_to_the_byte(family, optimizer, shape):
    conf = _config(family, optimizer__name=optimizer, model__num_heads=4)
    parts = experiment.Experiment(conf)
    state, device = parts.abstract_state(meshes.of(*shape)), jax.devices()[5]

    def on_device(tree):
        arrays = [
            jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)
            for leaf in jax.tree.leaves(tree)
        ]
        shards = (shard for array in arrays for shard in array.addressable_shards)
        return sum(shard.data.nbytes for shard in shards if shard.device == device)

    found = memory.state_bytes(parts, _sizes(*shape))
    assert found["params"] == found["gradients"] == on_device(state.params)
    assert found["optimizer"] == on_device(state.opt_state)
    assert found["frozen"] == 0
    conf.ema_decay = 0.9
    averaged = memory.state_bytes(experiment.Experiment(conf), _sizes(*shape))
    assert averaged == found | {"optimizer": found["optimizer"] + found["params"]}


@pytest.mark.parametrize(
    ("family", "objective"), proofs.all_but(OBJECTIVES, ("bert", ""), ("t5", ""), ("gpt2", ""))
)
def test_every_family_and_objective_has_an_estimate(family, objective):
    conf = _config(family, objective)
    found = memory.estimate(conf, _sizes(1, 8), hardware.parse_topology("v5e-8"))
    assert found.fits and found.activations > found.workspace > 0
    assert (found.frozen > 0) == (conf.objective.name == "distillation")


def test_activations_are_what_the_backward_pass_reads():
    conf = _config(model__dropout_rate=0.0, model__attention_dropout_rate=0.0)
    rows, length, width = conf.batch_size // 8, conf.data.length, conf.model.hidden_size
    scores = rows * conf.model.num_heads * length**2 * 2
    tokens = rows * length * 2
    least = conf.model.num_layers * (scores + tokens * 10 * width)  # in bfloat16, by hand
    assert least < _kept(conf, 8) < 5 * least


def test_activations_follow_the_batch_and_the_mesh():
    conf, twice = _config(), _config(batch_size=32)
    one, two = _kept(conf, 8), _kept(twice, 8)
    assert one < two <= 2 * one
    assert _kept(conf, 1, 8) < one, "casts of the parameters are split with them"
    assert _kept(twice, 4, 1, 2) < two * 2, "heads, MLP and vocabulary are split over tensor"
    assert _kept(conf, 4, 1, 1, 2) == pytest.approx(one, rel=0.01)
    assert _kept(_config(batch_size=32, micro_batch_size=16), 8) == one


def test_remat_keeps_less():
    none, dots, full = (_kept(_config(remat=name), 8) for name in ("none", "dots", "full"))
    assert full < dots < none


def test_scores_are_not_kept_but_made_again():
    conf = _config(model__attention_dropout_rate=0.0)
    short = _kept(conf, 8)
    conf.data.length *= 2
    assert _kept(conf, 8) < 2.01 * short, "linear in the length"
    plain, kernel = ({"attention": name} for name in ("xla", "splash"))
    topology = hardware.parse_topology("v5e-8")
    more, less = (memory.estimate(_config(**a), _sizes(8), topology) for a in (plain, kernel))
    assert more.workspace > less.workspace and more.activations == less.activations


@pytest.mark.parametrize("family", ["bert", "albert", "t5"])
def test_the_workspace_is_that_of_one_layer(family):
    topology = hardware.parse_topology("v5e-8")
    two, four = (
        memory.estimate(_config(family, model__num_layers=n), _sizes(8), topology) for n in (2, 4)
    )
    assert two.workspace == four.workspace and two.activations < four.activations


def test_micro_batches_have_gradients_of_their_own():
    topology = hardware.parse_topology("v5e-8")
    whole = memory.estimate(_config(), _sizes(8), topology)
    parts = memory.estimate(_config(micro_batch_size=8), _sizes(8), topology)
    assert parts.gradients == 2 * whole.gradients and parts.activations < whole.activations


def test_fits_leaves_a_margin():
    part = {"optimizer": 0, "frozen": 0, "gradients": 0, "activations": 0, "workspace": 0}
    assert memory.Memory(params=14 * GIB, **part, limit=16 * GIB).fits
    assert not memory.Memory(params=31 * GIB, **part, limit=32 * GIB).fits
    assert memory.Memory(params=15 * GIB, **part).fits
