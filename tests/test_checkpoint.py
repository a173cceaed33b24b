"""Checkpoints: what is restored is what was saved, or one line says what is wrong."""

import json
import os
import pathlib
import resource
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bertjax import checkpoint, errors
from bertjax.runtime import signals

META = {"config": {"model": {"hidden_size": 16}, "rates": [0.1, 0.9]}, "step": 10}


@struct.dataclass
class State:
    step: jax.Array
    params: dict
    opt_state: optax.OptState
    rng: jax.Array


def make_state(seed: int, hidden_size: int = 16) -> State:
    keys = jax.random.split(jax.random.key(seed), 3)
    params = {
        "word": {"embedding": jax.random.normal(keys[0], (64, hidden_size))},
        "dense": {"kernel": jax.random.normal(keys[1], (hidden_size, 8)), "bias": jnp.ones(8)},
    }
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    opt_state = jax.tree.map(lambda x: x + seed, tx.init(params))
    return State(jnp.int32(seed), params, opt_state, keys[2])


def make_mesh(*shape: int) -> jax.sharding.Mesh:
    return jax.make_mesh(
        shape,
        ("data", "fsdp"),
        axis_types=(AxisType.Auto,) * 2,
        devices=jax.devices()[: shape[0] * shape[1]],
    )


def abstract(tree, mesh):
    def leaf(x):
        spec = PartitionSpec("fsdp") if x.ndim == 2 else PartitionSpec()
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(leaf, tree)


def shard(tree, mesh):
    return jax.device_put(tree, jax.tree.map(lambda x: x.sharding, abstract(tree, mesh)))


def leaves(tree) -> dict[str, np.ndarray]:
    raw = jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
        tree,
    )
    return {
        jax.tree_util.keystr(path): np.asarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(raw)
    }


def assert_same(found, wanted) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, wanted)
    found, wanted = leaves(found), leaves(wanted)
    for path, array in wanted.items():
        np.testing.assert_array_equal(found[path], array, err_msg=path)


def open_to_write(folder, *, keep_last: int = 5, keep_best: int = 0) -> checkpoint.Checkpoints:
    return checkpoint.Checkpoints(folder, keep_last=keep_last, keep_best=keep_best)


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory) -> pathlib.Path:
    """Checkpoints 10 and 20, of `make_state(10)` and `make_state(20)`."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = open_to_write(folder)
    for step in (10, 20):
        state = shard(make_state(step), make_mesh(4, 2))
        checkpoints.save(step, state, {**META, "step": step}, {"eval/loss": 1.0})
    checkpoints.close()
    return folder


@pytest.fixture
def run(saved_run, tmp_path) -> pathlib.Path:
    """A copy of `saved_run` to break."""
    return pathlib.Path(shutil.copytree(saved_run, tmp_path / "checkpoints"))


@pytest.mark.parametrize("shape", [(4, 2), (1, 8), (2, 1), (1, 1)])
def test_restore_is_bit_exact_on_any_mesh(saved_run, shape):
    target = abstract(make_state(0), make_mesh(*shape))
    state, meta = checkpoint.Reader(saved_run).restore(target)
    assert_same(state, make_state(20))
    assert meta == {**META, "step": 20}
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, target)
    assert jax.random.normal(state.rng) == jax.random.normal(make_state(20).rng)


def test_restore_of_an_older_step_and_of_the_params_only(saved_run):
    reader = checkpoint.Reader(saved_run)
    assert (reader.steps(), reader.latest_step()) == ([10, 20], 20)
    assert reader.meta(10)["step"] == 10 and reader.meta()["step"] == 20
    target = abstract(make_state(0).params, make_mesh(1, 4))
    assert_same(reader.restore_params(target, 10), make_state(10).params)


def test_floating_point_leaves_are_cast_to_the_dtype_asked_for(saved_run):
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), make_state(20).params)
    target = abstract(half, make_mesh(1, 1))
    assert_same(checkpoint.Reader(saved_run).restore_params(target), half)


def test_state_may_be_donated_right_after_save(tmp_path):
    advance = jax.jit(lambda x: jax.tree.map(lambda y: y * 2 + 1, x), donate_argnums=0)
    params = {"kernel": jnp.arange(2.0**18)}
    wanted = jax.tree.map(np.asarray, jax.tree.map(jnp.copy, params))
    target = abstract(params, make_mesh(1, 1))
    checkpoints = open_to_write(tmp_path)
    checkpoints.save(1, {"params": params}, META, None)
    for _ in range(20):
        params = advance(params)
    assert_same(checkpoints.restore_params(target), wanted)
    checkpoints.close()


def test_save_of_an_existing_step_changes_nothing(run):
    checkpoints = open_to_write(run)
    checkpoints.save(20, make_state(99), {"step": 99}, None)
    checkpoints.save(30, make_state(30), META, None)
    checkpoints.save(30, make_state(99), {"step": 99}, None)
    checkpoints.close()
    for step in (20, 30):
        state, _ = checkpoint.Reader(run).restore(abstract(make_state(0), make_mesh(1, 1)), step)
        assert_same(state, make_state(step))


def test_killed_deletion_leaves_no_half_checkpoint(run, monkeypatch):
    checkpoints = open_to_write(run, keep_last=1)
    monkeypatch.setattr(checkpoints, "_remove_deleted", lambda: None)
    checkpoints.save(30, make_state(30), META, None)
    checkpoints.close()
    left = run / ".deleted"
    assert sorted(path.name for path in left.iterdir()) == ["10", "20"]
    (left / "10" / "checksums.json").unlink()
    reader = checkpoint.Reader(run)
    assert reader.steps() == [30] and reader.meta() == META and left.exists()
    open_to_write(run).close()
    assert not left.exists() and checkpoint.Reader(run).steps() == [30]


def test_checkpoint_with_damaged_metrics_is_named_and_neither_ranked_nor_deleted(run, capfd):
    (run / "10/metrics/metrics").write_text('{"eval/loss": ')
    assert checkpoint.Reader(run).meta()["step"] == 20
    checkpoints = open_to_write(run, keep_last=1, keep_best=1)
    line = capfd.readouterr().err.strip()
    assert "\n" not in line and f"{run / '10'} is damaged (metrics/metrics has" in line
    checkpoints.save(30, make_state(30), META, {"eval/loss": 0.5})
    checkpoints.close()
    assert checkpoint.Reader(run).steps() == [10, 30]


def test_half_written_checkpoint_is_ignored_and_cleared(run):
    half = run / "25.orbax-checkpoint-tmp"
    shutil.copytree(run / "20" / "state", half / "state")
    assert checkpoint.Reader(run).latest_step() == 20
    assert half.exists()  # a reader may look on while another process writes this
    checkpoints = open_to_write(run)
    assert checkpoints.latest_step() == 20
    checkpoints.save(30, make_state(30), META, None)
    checkpoints.close()
    assert not half.exists()
    assert checkpoint.Reader(run).steps() == [10, 20, 30]


def data_file(folder: pathlib.Path) -> pathlib.Path:
    return max((folder / "state").rglob("d/*"), key=lambda path: path.stat().st_size)


def truncate(folder):
    path = data_file(folder)
    os.truncate(path, path.stat().st_size // 2)


def flip_one_bit(folder):
    path = data_file(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


BREAKAGES = {
    "truncated": (truncate, "bytes, not"),
    "one bit": (flip_one_bit, "has changed since it was written"),
    "data deleted": (lambda folder: data_file(folder).unlink(), "is missing"),
    "metadata deleted": (lambda folder: (folder / "state/_METADATA").unlink(), "is missing"),
    "meta overwritten": (lambda folder: (folder / "meta/metadata").write_text("{}"), "bytes, not"),
    "list deleted": (lambda folder: (folder / "checksums.json").unlink(), "checksums.json"),
    "list cut": (lambda folder: os.truncate(folder / "checksums.json", 40), "checksums.json"),
    "list of another form": (
        lambda folder: (folder / "checksums.json").write_text('{"version": 1, "files": {"a": 1}}'),
        "checksums.json",
    ),
    "emptied": (lambda folder: [shutil.rmtree(folder), folder.mkdir()], "checksums.json"),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_damaged_checkpoint_is_one_line_that_says_where_to_go_on(run, breakage, capfd):
    damage, says = BREAKAGES[breakage]
    damage(run / "20")
    target = abstract(make_state(0), make_mesh(1, 1))
    for checkpoints in (checkpoint.Reader(run), open_to_write(run)):
        with pytest.raises(errors.UserError) as caught:
            checkpoints.restore(target)
        message = str(caught.value)
        assert str(run / "20") in message and says in message and "\n" not in message
        assert f"delete that folder to resume from step 10, or give --model={run / '10'}" in message
        assert_same(checkpoints.restore(target, 10)[0], make_state(10))
        with pytest.raises(errors.UserError, match="is damaged"):
            checkpoints.restore_params(target.params)
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if f"warning: checkpoint {run / '20'} is" not in line] == []
    shutil.rmtree(run / "20")
    assert checkpoint.Reader(run).latest_step() == 10


def test_damage_of_every_checkpoint_says_so(run):
    truncate(run / "10")
    truncate(run / "20")
    with pytest.raises(errors.UserError, match="no earlier one is intact"):
        checkpoint.Reader(run).restore(abstract(make_state(0), make_mesh(1, 1)))


def test_meta_reads_and_verifies_the_meta_only(run):
    truncate(run / "20")
    assert checkpoint.Reader(run).meta()["step"] == 20
    (run / "20/meta/metadata").write_text(json.dumps({**META, "step": 21}))
    with pytest.raises(errors.UserError, match="meta/metadata has changed since it was written"):
        checkpoint.Reader(run).meta()


def test_missing_checkpoints_are_named(run, tmp_path):
    with pytest.raises(errors.UserError, match="no checkpoint of step 5; the steps are 10, 20"):
        checkpoint.Reader(run).meta(5)
    with pytest.raises(errors.UserError, match="contains no complete checkpoint"):
        checkpoint.Reader(tmp_path / "none").meta()
    assert not (tmp_path / "none").exists()


def without(tree: dict, name: str) -> dict:
    return {key: value for key, value in tree.items() if key != name}


def other_params(state: State, **params) -> State:
    return state.replace(params={**state.params, **params})


def other_dtype(leaf: jax.ShapeDtypeStruct, dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, dtype)


MISFITS = {
    "shape": (
        lambda state: other_params(state, word={"embedding": state.params["dense"]["bias"]}),
        r"params/word/embedding is float32\[64,16\], expected float32\[8\]",
    ),
    "optimizer shape": (
        lambda state: state.replace(opt_state=jax.eval_shape(lambda: make_state(0, 32)).opt_state),
        r"opt_state/1/0/mu/dense/kernel is float32\[16,8\], expected float32\[32,8\]",
    ),
    "absent": (
        lambda state: other_params(state, pooler=state.params["word"]["embedding"]),
        r"it has no params/pooler, expected float32\[64,16\]",
    ),
    "left over": (
        lambda state: state.replace(params=without(state.params, "dense")),
        "it has an unexpected params/dense/bias",
    ),
    "dtype": (
        lambda state: state.replace(step=other_dtype(state.step, jnp.float32)),
        r"its step is int32\[\], expected float32\[\]",
    ),
    "kind of PRNG": (
        lambda state: state.replace(rng=jax.eval_shape(lambda: jax.random.key(0, impl="rbg"))),
        r"its rng is uint32\[2\], expected uint32\[4\]",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_misfit_names_the_first_path_and_both_forms(saved_run, misfit):
    change, message = MISFITS[misfit]
    wanted = abstract(change(jax.eval_shape(lambda: make_state(0))), make_mesh(1, 1))
    with pytest.raises(errors.UserError, match=message) as caught:
        checkpoint.Reader(saved_run).restore(wanted)
    assert str(saved_run / "20") in str(caught.value) and "\n" not in str(caught.value)


def test_restore_params_checks_the_params_only(saved_run):
    state = make_state(0)
    params = {**state.params, "pooler": state.params["dense"]["bias"]}
    with pytest.raises(errors.UserError, match="it has no params/pooler"):
        checkpoint.Reader(saved_run).restore_params(abstract(params, make_mesh(1, 1)))


def test_target_without_sharding_is_refused(saved_run):
    with pytest.raises(ValueError, match="sharding"):
        checkpoint.Reader(saved_run).restore(jax.eval_shape(lambda: make_state(0)))


def test_full_disk_is_one_line_and_older_checkpoints_stay(run, capfd):
    noise = jax.random.normal(jax.random.key(0), (16, 2**16))  # zstd cannot shrink it
    state = make_state(30).replace(params=list(noise))
    checkpoints = open_to_write(run, keep_last=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, limits[1]))
    try:
        with pytest.raises(errors.UserError) as caught:
            checkpoints.save(30, state, META, None)
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    message = str(caught.value)
    assert str(run / "30") in message and "step 20 is complete" in message and "\n" not in message
    assert capfd.readouterr().err == ""
    assert checkpoint.Reader(run).steps() == [10, 20]
    assert_same(checkpoints.restore(abstract(make_state(0), make_mesh(1, 1)))[0], make_state(20))
    checkpoints.save(30, state, META, None)  # there is room again
    checkpoints.close()
    assert checkpoint.Reader(run).steps() == [30]


def test_an_io_error_of_tensorstore_is_one_line(run, monkeypatch):
    said = "UNKNOWN: Error writing 'a/.zarray': Failed to fsync file: Input/output error [...]"
    checkpoints = open_to_write(run)

    def fail(*_, **__):
        raise ValueError(said)

    monkeypatch.setattr(checkpoints._manager, "save", fail)
    with pytest.raises(errors.UserError, match=r"/30: Input/output error; step 20 is complete"):
        checkpoints.save(30, make_state(30), META, None)


def test_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.UserError, match=r"cannot write to .*file/checkpoints"):
        open_to_write(tmp_path / "file" / "checkpoints")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_asks_to_stop_and_ctrl_c_after_it_interrupts(number):
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt), signals.StopSignals() as stop:
        assert not stop.reached(1) and stop.requested is None
        os.kill(os.getpid(), number)
        assert stop.reached(2) and stop.requested == signal.Signals(number).name
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reached(3) and stop.requested == signal.Signals(number).name
        os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
