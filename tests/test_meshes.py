"""The mesh changes neither loss nor gradients, and the compiler moves no more than it must.

Whatever is compiled here is listened to: an "involuntary full rematerialization" fails the test.
"""

import contextlib
import functools
import os
import re
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.extend.core import jaxprs_in_params
from jax.sharding import NamedSharding, PartitionSpec

from bertjax import config as config_lib
from bertjax import sharding
from tests.helpers import meshes, proofs, tiny_runs

ROWS, HEADS = 32, 8  # for eight devices with four micro-batches, and for eight of tensor
# data, fsdp, tensor, sequence, slice
MESHES = [
    (1, 1, 1, 1), (4, 1, 1, 1, 2), (1, 8, 1, 1), (1, 1, 8, 1), (2, 2, 2, 1), (1, 2, 2, 2),
    (1, 2, 2, 1, 2),
]  # fmt: skip
# Keeps the gradients where `plugins.gradients` finds them and the sharding table places them.
GRADIENTS = optax.GradientTransformation(
    lambda params: ({"mu": jax.tree.map(jnp.zeros_like, params)},),
    lambda grads, state, params: (grads, ({"mu": grads},)),
)


@contextlib.contextmanager
def _no_compilation_cache():
    """Compiles anew: the compiler prints nothing about a program from the cache."""
    for enabled in (False, True):
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()
        if not enabled:
            yield


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return tiny_runs.write_teacher(tmp_path_factory.mktemp("teacher") / "artifact")


def make_config(family, teacher, micro_batches=1, **fields):
    """A tiny model whose heads eight devices can have one each."""
    config = tiny_runs.make_config(family, teacher=teacher)
    config.model.num_heads = HEADS
    if "head_dim" in config.model:
        config.model.head_dim = 8
    if family == "deberta":  # with the parts that no default has
        config.model.update(enhanced_mask_decoder=True, conv_kernel_size=3)
    config.model.update(fields)
    config.batch_size, config.micro_batch_size = ROWS, ROWS // micro_batches
    config_lib.validate(config)
    return config


def _listen(compile):
    """What `compile` returns. Fails if XLA says that it has an array rebuilt whole to split it."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            with _no_compilation_cache():
                made = compile()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        said = file.read().decode()
    assert "full rematerialization" not in said, f"rebuilt whole: {said}"
    return made


def _compile(run):
    """The train step of a run for its batches."""
    with jax.set_mesh(run.mesh):
        batch = sharding.global_batch(run.mesh, ROWS, run.batch(0))
        return _listen(run.train_step.lower(run.first_state(), batch, run.frozen).compile)


@functools.cache
def _run(family, teacher, mesh=MESHES[0], micro_batches=1):
    run = tiny_runs.Run(make_config(family, teacher, micro_batches), mesh)
    run.experiment.tx = GRADIENTS
    run.train_step = _compile(run)
    return run


@functools.cache
def _on_one_device(family, teacher):
    """(batch, report, gradients) of the whole batch at once."""
    run = _run(family, teacher)
    batch, predictions = tiny_runs.uneven(run.batch(0))
    for parts in (2, 4, 8):
        assert len(set(predictions.reshape(parts, -1).sum(axis=1))) > parts / 2, "of the devices"
    assert not predictions.all() and (predictions > 0).sum() > ROWS // 2
    report, state = run.step(batch)
    return batch, report, tiny_runs.gradients(state)


def _assert_equal_to_one_device(family, teacher, mesh, micro_batches):
    batch, *expected = _on_one_device(family, teacher)
    report, state = _run(family, teacher, mesh, micro_batches).step(batch)
    _assert_close(expected, (report, tiny_runs.gradients(state)))


def _assert_close(expected, found):
    (expected, wanted), (report, gradients) = expected, found
    assert report == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == wanted.keys()
    largest = max(np.abs(leaf).max() for leaf in wanted.values())
    for path, leaf in wanted.items():
        difference = np.linalg.norm(gradients[path] - leaf)
        assert difference <= 1e-5 * np.linalg.norm(leaf) + 1e-7 * largest, path


@pytest.mark.parametrize(
    ("mesh", "micro_batches"),
    proofs.all_but(
        zip(MESHES, (2, 1, 4, 1, 4, 2, 2), strict=True), *((mesh, 2) for mesh in MESHES[-2:])
    ),
    ids=str,
)
def test_neither_mesh_nor_micro_batches_change_loss_and_gradients(mesh, micro_batches):
    _assert_equal_to_one_device("bert", "", mesh, micro_batches)


@pytest.mark.parametrize(
    "family", proofs.all_but(sorted(set(tiny_runs.FAMILIES) - {"bert"}), "electra", "t5")
)
def test_nor_do_they_for_any_family(family, teacher):
    # Without micro-batches, data and fsdp split the same dimension of a batch; see the next test.
    needs_teacher = "teacher" in tiny_runs.make_config(family).objective
    _assert_equal_to_one_device(family, teacher if needs_teacher else "", (1, 2, 2, 2), 2)


@pytest.mark.proof
@pytest.mark.parametrize("family", sorted(tiny_runs.FAMILIES))
def test_the_mesh_does_not_change_the_dropout_of_micro_batches(family, teacher):
    # DeBERTa also drops elements of a table of positions, which all rows share.
    needs_teacher = "teacher" in tiny_runs.make_config(family).objective
    config = make_config(family, teacher if needs_teacher else "", 2)
    rates = [name for name in config.model if name.endswith("dropout_rate")]
    for name in rates:
        config.model[name] = 0.1
    results = []
    for mesh in (MESHES[0], (2, 2, 2, 1)):
        run = tiny_runs.Run(config, mesh)
        run.experiment.tx = GRADIENTS
        report, state = run.step(run.batch(0))
        results.append((report, tiny_runs.gradients(state)))
    assert rates
    _assert_close(*results)


def test_families_have_their_pairs_here():
    heads = {family: make_config(family, "").model.heads for family in ("bert", "albert", "t5")}
    assert "nsp" in heads["bert"] and "sop" in heads["albert"] and heads["t5"] == ("lm",)


# --- what the compiler makes of it ---------------------------------------------------------------

_COLLECTIVE = re.compile(
    r"= (.+?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def _moved(hlo):
    """(kind, shape) of every array that a collective of the compiled text makes."""
    return {
        (kind, tuple(int(n) for n in dims.split(",") if n))
        for result, kind in _COLLECTIVE.findall(hlo)
        for dims in re.findall(r"\w+\[([\d,]*)\]", result)
    }


@pytest.mark.parametrize(
    ("family", "mesh", "micro_batches"),  # all of them are compiled above too
    proofs.all_but(
        [("bert", (2, 2, 2, 1), 4), *((f, (1, 2, 2, 2), 2) for f in ("bert", "gpt2", "t5"))],
        ("bert", (1, 2, 2, 2), 2),
        ("t5", (1, 2, 2, 2), 2),
    ),
)
def test_no_device_is_sent_logits(family, mesh, micro_batches):
    run = _run(family, "", mesh, micro_batches)
    moved, rows = _moved(run.train_step.as_text()), run.vocab_rows
    assert moved, "the pattern finds collectives"
    width = run.experiment.config.model.hidden_size
    # The table, whole over fsdp, its gradient and that of the bias; of all else the vocabulary is
    # summed over or looked up where it is.
    tables = {(rows // 2, width), (rows // 2, width // mesh[1]), (rows // 2,)}
    found = {shape for _, shape in moved if {rows, rows // 2} & set(shape)}
    assert ("all-gather", (rows // 2, width)) in moved
    assert found <= tables, moved


def _equations(jaxpr):
    """All equations of a jaxpr and of those inside it, each with the jaxpr that it stands in."""
    for equation in jaxpr.eqns:
        yield jaxpr, equation
        for inner in jaxprs_in_params(equation.params):
            yield from _equations(inner)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_tables_are_gathered_before_the_loop_over_micro_batches(family):
    # Read before it is compiled: the compiler for CPUs, but not libtpu, moves it out of the loop.
    run = tiny_runs.Run(make_config(family, "", 4), (2, 2, 2, 1))
    with jax.set_mesh(run.mesh):
        batch = sharding.global_batch(run.mesh, ROWS, run.batch(0))
        jaxpr = run.train_step.trace(run.first_state(), batch, run.frozen).jaxpr.jaxpr
    ((outer, loop),) = [
        (outer, one) for outer, one in _equations(jaxpr)
        if one.primitive.name == "scan" and one.params["length"] == 4
    ]  # fmt: skip
    width = run.experiment.config.model.hidden_size
    fixed = [
        one.params["sharding"].spec for one in outer.eqns
        if one.primitive.name == "sharding_constraint" and one.outvars[0] in loop.invars
        and one.outvars[0].aval.shape == (run.vocab_rows, width)
    ]  # fmt: skip
    assert fixed == [PartitionSpec(("tensor",), None)]


@pytest.mark.parametrize(
    ("family", "optimizer", "fields"),
    [
        pytest.param("bert", "lamb", {}, marks=pytest.mark.proof),
        ("bert", "muon", {}),
        # Wide enough for Adafactor to factor.
        ("t5", "adafactor",
         {"hidden_size": 128, "head_dim": 16, "intermediate_size": 128, "activation": "gelu_tanh",
          "gated": True, "tied_embeddings": False}),
    ],
)  # fmt: skip
def test_nor_is_any_by_a_step_of_the_optimizer(family, optimizer, fields):
    config = make_config(family, "", 2, **fields)
    config.optimizer.name = optimizer
    _compile(tiny_runs.Run(config, (1, 2, 2, 2)))


def test_the_compiler_is_heard():
    # From one split to another that no exchange between the devices leads to.
    mesh = meshes.of(1, 2, 2, 2)
    first, then = (
        NamedSharding(mesh, PartitionSpec(*axes))
        for axes in ((None, None, ("tensor", "fsdp")), ("fsdp", "sequence", None))
    )

    @jax.jit
    def split_anew(x):
        x = jax.lax.with_sharding_constraint(jnp.cos(x), first)
        return jax.lax.with_sharding_constraint(jnp.sin(x), then)

    with jax.set_mesh(mesh), pytest.raises(AssertionError, match="rebuilt whole"):
        _listen(split_anew.lower(np.ones((32, 6, 96), np.float32)).compile)
