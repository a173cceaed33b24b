"""Where arrays live: the table of parameters, meshes, and batches put together from rows."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bertjax import config as config_lib
from bertjax import device_groups, errors, experiment, optimizer, plugins, sharding
from bertjax import step as step_lib
from tests.helpers import meshes

FAMILIES = plugins.families()
V1_1 = {"activation": "gelu_tanh", "gated": True, "tied_embeddings": False}
TUNED = {"heads": ("pooler", "classifier"), "num_labels": 2, "adapter_size": 8}
MODELS = [  # those after the families have names that no default has
    *((family, {}) for family in FAMILIES),
    ("t5", V1_1),
    ("bert", TUNED),
    ("deberta", {"conv_kernel_size": 3}),
]


def _params(family, **fields):
    return plugins.abstract_params(plugins.model(family, fields))


def _line(path):
    return next(pattern for pattern, _ in sharding.PARAM_AXES if re.search(pattern, path))


def _named(tree):
    return {sharding.path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.parametrize(("family", "fields"), MODELS)
def test_every_parameter_has_a_line_with_an_axis_for_each_dimension(family, fields):
    for path, leaf in _named(_params(family, **fields)).items():
        axes = sharding.param_axes(path)
        assert len(axes) == leaf.ndim, f"{path} {leaf.shape}: {axes}"
        assert all(axis is None or axis in sharding.AXIS_RULES for axis in axes)
        assert len(set(axes) - {None}) == len([axis for axis in axes if axis]), "an axis twice"


def test_every_line_is_used_by_some_family():
    used = {_line(path) for family, fields in MODELS for path in _named(_params(family, **fields))}
    # These are of a strategy and of text vectors, and of no model.
    others = ["mlp/wi/kernel/lora_a", "projection/0/kernel", "projection/0/bias"]
    used |= set(map(_line, others))
    assert used == {pattern for pattern, _ in sharding.PARAM_AXES}


def test_unknown_parameter_says_what_is_missing():
    with pytest.raises(KeyError, match=r"no line in sharding.PARAM_AXES.*relative_bias"):
        sharding.param_axes("encoder/layers/attention/relative_bias/values")


# adafactor: test_optimizer_t5.py; muon: test_optimizer_matrices.py
@pytest.mark.parametrize("name", ["adamw", "stable_adamw", "adamw_rms", "lamb"])
def test_moments_live_where_their_parameters_do(name):
    mesh = meshes.of(2, 2, 2)
    tx = optimizer.make(optimizer.Config(name=name), 100_000)
    params = _params("bert", hidden_size=64, num_heads=4, num_layers=2, vocab_size=200)
    state = jax.eval_shape(lambda p: step_lib.init_state(p, tx, jax.random.key(0)), params)
    places = _named(sharding.state_shardings(mesh, state))
    of_params = {k.removeprefix("params/"): v for k, v in places.items() if k.startswith("params/")}
    of_moments = {k: v for k, v in places.items() if re.search("/(mu|nu)/", k)}
    assert len(of_moments) == 2 * len(of_params)
    for path, place in of_moments.items():
        assert place == of_params[re.split("/(?:mu|nu)/", path)[1]], path
    assert of_params["embeddings/word/embedding"].spec == PartitionSpec(("tensor",), ("fsdp",))
    assert of_params["encoder/layers/mlp/wi/kernel"].spec == PartitionSpec(
        None, ("fsdp",), ("tensor",)
    )
    whole = [k for k in places if not re.search("params/|/mu/|/nu/", k)]
    assert {"step", "rng", "skipped", "skipped_in_row"} < set(whole)
    assert all(places[path].spec == PartitionSpec() for path in whole)


def test_an_axis_that_does_not_divide_stays_whole():
    mesh = meshes.of(1, 2, 4)
    state = {"params": _params("bert", hidden_size=66, num_heads=6, intermediate_size=132)}
    places = _named(sharding.state_shardings(mesh, state))
    query = places["params/encoder/layers/attention/query/kernel"]
    assert query.spec == PartitionSpec(None, ("fsdp",), None, None), "6 heads on 4 devices"
    wi = places["params/encoder/layers/mlp/wi/kernel"]
    assert wi.spec == PartitionSpec(None, ("fsdp",), ("tensor",))


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        ("data:-1", (1, 8, 1, 1, 1)),
        ("fsdp:-1,tensor:2", (1, 1, 4, 2, 1)),
        ("data:2, fsdp:2, tensor:-1", (1, 2, 2, 2, 1)),
        ("fsdp:2", (1, 4, 2, 1, 1)),
        ("data:8,tensor:-1", (1, 8, 1, 1, 1)),
        ("sequence:4", (1, 2, 1, 1, 4)),
        ("slice:2,tensor:2", (2, 2, 1, 2, 1)),
        ("fsdp:-1,slice:4", (4, 1, 2, 1, 1)),
    ],
)
def test_mesh_fills_in_the_size_left_open(asked, shape):
    mesh = sharding.make_mesh(asked)
    assert tuple(mesh.shape.values()) == shape and mesh.axis_names == sharding.MESH_AXES
    assert sharding.batch_shards(mesh) == shape[0] * shape[1] * shape[2]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *((text, "the product of its sizes must be 8") for text in
          ("data:3", "data:16", "data:2,fsdp:2", "data:-1,fsdp:-1", "data:-1,fsdp:3",
           "slice:3")),
        *((text, "must be axis sizes such as") for text in
          ("", "8", "fsdp:0", "fsdp:-2", "fsdp:two", "fsdp:2,fsdp:4", "model:2", "fsdp=2",
           "slice:-1")),
    ],
)  # fmt: skip
def test_mesh_that_the_devices_cannot_make_is_refused(asked, said):
    with pytest.raises(errors.UserError) as caught:
        sharding.make_mesh(asked)
    assert f"config.mesh = {asked!r}" in str(caught.value) and said in str(caught.value)


@dataclasses.dataclass(frozen=True)
class _Tpu:
    """As much of a TPU's device as a mesh asks for: a torus of 2 x 2 chips in each slice."""

    id: int
    slice_index: int
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"
    core_on_chip: int = 0
    process_index: int = 0

    @property
    def coords(self):
        return (self.id // 2 % 2, self.id // 4, 0)


@pytest.mark.parametrize(
    ("asked", "shape"),
    [("data:-1", (2, 4, 1)), ("fsdp:-1", (2, 1, 4)), ("slice:2,fsdp:2", (2, 2, 2))],
)
def test_each_slice_of_tpus_is_a_part_of_the_axis_slice(asked, shape):
    devices = [_Tpu(n, slice_index=n % 2) for n in range(8)]
    assert sharding.hardware_slices(devices) == 2
    mesh = sharding.make_mesh(asked, devices)
    assert tuple(mesh.shape.values()) == (*shape, 1, 1)
    assert [{d.slice_index for d in part.flat} for part in mesh.devices] == [{0}, {1}]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("slice:4,fsdp:2", "slice must be 2, the number of slices of the hardware"),
        ("data:8", "must be 4, the number of devices in each of the 2 slices"),
        ("slice:2,data:8", "must be 8, the number of devices;"),
    ],
)
def test_a_mesh_of_other_slices_than_there_are_is_refused(asked, said):
    with pytest.raises(errors.UserError) as caught:
        sharding.mesh_sizes(asked, 8, num_slices=2)
    assert f"config.mesh = {asked!r}: " in str(caught.value) and said in str(caught.value)


class _OneProcess:
    """A sharding as the process sees it that holds only `devices`."""

    def __init__(self, whole, devices):
        self.whole, self.devices = whole, devices

    def addressable_devices_indices_map(self, shape):
        places = self.whole.devices_indices_map(shape)
        return {device: places[device] for device in self.devices}


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 2, 2, 1, 2)])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_local_rows_of_all_processes_cover_each_row_once(shape, processes, monkeypatch):
    mesh = meshes.of(*shape)
    whole = sharding.batch_sharding(mesh)
    rows = []
    for devices in np.split(mesh.devices.ravel(), processes):
        one = _OneProcess(whole, devices)
        monkeypatch.setattr(sharding, "batch_sharding", lambda mesh, one=one: one)
        mine = sharding.local_rows(mesh, 24)
        assert (np.diff(mine) > 0).all()
        rows.append(mine)
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(24))


def test_global_batch_is_the_rows_in_their_order():
    mesh = meshes.of(2, 2, 2)
    rows = sharding.local_rows(mesh, 12)
    local = {
        "input_ids": (100 * rows[:, None] + np.arange(5)).astype(np.int32),
        "next_sentence_label": rows.astype(np.int32),
    }
    batch = sharding.global_batch(mesh, 12, local)
    for name, value in local.items():
        np.testing.assert_array_equal(batch[name], value)
        assert batch[name].sharding.is_equivalent_to(sharding.batch_sharding(mesh), value.ndim)
        assert {shard.data.shape[0] for shard in batch[name].addressable_shards} == {3}


def test_constrain_is_nothing_outside_a_mesh_and_pins_inside():
    x = np.ones((8, 4, 6), np.float32)
    assert sharding.constrain(x, ("batch", "length", "embed")) is x
    mesh = meshes.of(2, 2, 2)
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: sharding.constrain(x, ("batch", "length", "mlp")) + 1)(x)
    assert {shard.data.shape for shard in y.addressable_shards} == {(2, 4, 3)}


def test_what_is_kept_in_parts_is_whole_over_fsdp_where_it_is_used():
    table, path = np.ones((8, 4), np.float32), "embeddings/word/embedding"
    tree = {"embeddings": {"word": {"embedding": table}}}
    assert sharding.gathered(table, path) is table
    assert sharding.constrain_params(tree) is tree
    assert sharding.gather_tables(tree) is tree
    with jax.set_mesh(meshes.of(2, 2, 2)):
        used = jax.jit(lambda x: sharding.gathered(x, path))(table)
        (found,) = jax.tree.leaves(jax.jit(sharding.gather_tables)(tree))
        kept = jax.tree.leaves(jax.jit(sharding.constrain_params)(tree))[0]
    for whole in (used, found):
        assert {shard.data.shape for shard in whole.addressable_shards} == {(4, 4)}
    assert {shard.data.shape for shard in kept.addressable_shards} == {(4, 2)}


@pytest.mark.parametrize(
    ("shape", "num_groups", "split"),
    [
        ((2, 2, 2), 2, ["batch", "heads", "mlp", "vocab"]),
        ((2, 2, 1, 1, 2), 4, ["batch"]),
        ((1, 2), 1, ["batch"]),
        ((8,), 8, []),
    ],
)
def test_each_group_of_devices_sums_its_rows(shape, num_groups, split):
    x, axes = np.arange(48, dtype=np.float32).reshape(8, 6), ("batch", "mlp")

    def of_rows(batch, factor):
        x = sharding.constrain(batch["x"], axes)
        assert [axis for axis in sharding.AXIS_RULES if sharding.splits(axis)] == split
        sizes = sharding.map_shards(
            lambda arrays: 0 * arrays["x"] + len(arrays["x"]), {"x": x}, {"x": axes}, "x"
        )
        starts = jnp.zeros(8).at[device_groups.first_row(len(x))].set(1)
        return {"sum": factor * x.sum(0), "starts": starts, "rows of a device": sizes.sum() / 48}

    with jax.set_mesh(meshes.of(*shape)):
        found = jax.jit(lambda *args: device_groups.sum_over_groups(of_rows, *args))({"x": x}, 2.0)
    np.testing.assert_array_equal(found["sum"], 2 * x.sum(0))
    np.testing.assert_array_equal(found["starts"], np.arange(8) % (8 // num_groups) == 0)
    assert found["rows of a device"] == 8 / num_groups / (2 if "batch" in split else 1)


def test_there_is_one_group_outside_a_mesh():
    batch = {"x": np.ones((4, 2))}
    found = device_groups.sum_over_groups(
        lambda rows: rows["x"] + device_groups.first_row(4), batch
    )
    np.testing.assert_array_equal(found, batch["x"])


def test_which_axes_the_mesh_in_use_splits():
    def split():
        return [axis for axis in sharding.AXIS_RULES if sharding.splits(axis)]

    assert split() == []
    with jax.set_mesh(meshes.of(1, 2, 1, 2)):
        assert split() == ["batch", "length"]
    with jax.set_mesh(meshes.of(1, 1, 2)):
        assert split() == ["heads", "mlp", "vocab"]


@pytest.mark.parametrize(
    ("mesh", "overrides", "said"),
    [
        ((8, 1, 1), {"batch_size": 12}, "config.batch_size = 12: must be a multiple of 8"),
        ((2, 2, 2), {"micro_batch_size": 2}, "config.micro_batch_size = 2: must be a multiple of"),
        ((1, 1, 8), {}, "tensor = 8 must divide config.model.num_heads = 2"),
        ((1, 1, 1, 8), {"data.length": 20},
         "config.data.length = 20: must be a multiple of 8"),
        ((1, 1, 1, 8), {"phase2.length": 36, "phase2.num_steps": 5},
         "config.phase2.length = 36: must be a multiple of 8"),
    ],
)  # fmt: skip
def test_what_a_mesh_cannot_split_is_refused(mesh, overrides, said):
    config = config_lib.smoke(config_lib.default("bert", "tiny"))
    for key, value in overrides.items():
        config_lib.override(config, key, str(value))
    config_lib.validate(config)
    with pytest.raises(errors.UserError, match=said):
        experiment.check_mesh(config, meshes.of(*mesh))
