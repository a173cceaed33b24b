"""Plans: estimates, reports, searches, the command, and what the TPU compiler says."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from bertjax import __main__, errors
from bertjax import config as config_lib
from bertjax.planning import compile, cost, memory, report, search
from bertjax.planning import plan as plan_lib
from bertjax.runtime import hardware

needs_libtpu = pytest.mark.skipif(not compile.installed(), reason="there is no TPU compiler")


def tiny(**overrides):
    """BERT tiny, one phase."""
    config = config_lib.default("bert", "tiny")
    config.batch_size = 64
    config.num_steps = 20_000
    config.update(overrides)
    return config


def test_a_plan_says_that_it_compiles_before_it_does(monkeypatch, capsys):
    shown = []

    def compile_step(*_):
        shown.append(capsys.readouterr().err)
        return compile.Compiled(error="refused")

    monkeypatch.setattr(compile, "compile_step", compile_step)
    plan_lib.make(tiny(mesh="data:8"), hardware.parse_topology("v5e-8"), use_compiler=True)
    (line,) = shown
    assert line.startswith("bertjax: compiling the step of 64 x 128 tokens for v5e-8")


def test_a_plan_without_a_compiler_says_so(monkeypatch):
    monkeypatch.setattr(compile, "installed", lambda: False)
    plan = plan_lib.make(tiny(), hardware.parse_topology("v5e-8"))
    text = "\n".join(report.lines(plan, price=1.5))
    assert plan.fits and plan.hours > 0
    assert compile.INSTALL in text
    assert f"{plan.hours * 8 * 1.5:,.2f} at 1.5 each" in text
    with pytest.raises(errors.UserError, match="TPU compiler"):
        compile.compile_step(tiny(mesh="data:8"), hardware.parse_topology("v5e-8"))


@pytest.mark.parametrize(("topology", "known"), [("h100-8", True), ("cpu-8", False)])
def test_other_chips_are_estimated(topology, known):
    plan = plan_lib.make(tiny(), hardware.parse_topology(topology))
    assert (plan.hours is not None) == known
    text = "\n".join(report.lines(plan))
    assert ("peaks unknown" in text) != known
    assert json.loads(json.dumps(report.to_json(plan)))["hours"] == plan.hours


def test_a_plan_of_two_phases_adds_them_up():
    config = tiny()
    config.phase2.update(num_steps=4_000, length=512, batch_size=32)
    plan = plan_lib.make(config, hardware.parse_topology("v5e-8"), use_compiler=False)
    first, second = plan.phases
    assert plan.tokens == 16_000 * 64 * 128 + 4_000 * 32 * 512
    assert plan.hours == pytest.approx((16_000 * first.seconds + 4_000 * second.seconds) / 3600)
    with pytest.raises(errors.UserError, match="tensor = 8 must divide"):
        plan_lib.make(tiny(mesh="tensor:8"), plan.topology, use_compiler=False)


def with_compiled(plan, **fields):
    """The plan as if this had come from the compiler."""
    phases = (dataclasses.replace(plan.phases[0], compiled=compile.Compiled(**fields)),)
    return dataclasses.replace(plan, phases=phases)


def test_the_report_says_what_the_compiler_said():
    plan = plan_lib.make(tiny(), hardware.parse_topology("v5e-8"), use_compiler=False)
    sent = cost.Collective("all-gather", 8, ("data",), 2_000_000, count=5)
    good = with_compiled(plan, peak=3 * 2**30, collectives=(sent,))
    text = "\n".join(report.lines(good))
    assert "3.0 GiB (19%)" in text and "all-gather" in text and "5 x 2 MB" in text

    full = with_compiled(plan, peak=20 * 2**30, capacity=16 * 2**30)
    assert not full.fits
    assert "NO" in "\n".join(report.lines(full)) and "--search" in "\n".join(report.lines(full))

    rebuilt = with_compiled(plan, rematerialized=("Involuntary full rematerialization of x",))
    assert "warning: Involuntary" in "\n".join(report.lines(rebuilt))
    assert "boom" in "\n".join(report.lines(with_compiled(plan, error="boom")))


def test_what_the_compiler_writes_is_read():
    line = "W0000 spmd.cc:1] [SPMD] Involuntary full rematerialization. {op=%gather}"
    assert len(compile.warnings(f"I a\n{line}\n{line}\nE b\n")) == 1
    assert compile.warnings("nothing\n") == []


def test_a_search_ranks_what_fits(monkeypatch):
    monkeypatch.setattr(compile, "installed", lambda: False)
    found, tried = search.run(tiny(), hardware.parse_topology("v5e-8"), count=5)
    assert len(found) == 5 <= tried
    assert [one.rank for one in found] == sorted(one.rank for one in found)
    assert all(one.plan.fits for one in found)
    assert len({one.flags for one in found}) == 5
    assert "--config.mesh=" in "\n".join(report.search_lines(found, tried))


def test_a_search_compiles_small_micro_batches_too(monkeypatch):
    make, compiled = plan_lib.make, []

    def fake(config, topology, use_compiler):
        if use_compiler:
            compiled.append(config)
        return make(config, topology, use_compiler=False)

    monkeypatch.setattr(compile, "installed", lambda: True)
    monkeypatch.setattr(plan_lib, "make", fake)
    found, _ = search.run(tiny(), hardware.parse_topology("v5e-1"), count=4)
    settings = [(config.remat, config.micro_batch_size) for config in compiled]
    assert len(found) == 4 and len(settings) == len(set(settings)) == 8
    # 64 rows of 128 tokens, in up to four micro-batches of 2,048 tokens
    assert {("none", 0), ("none", 32), ("none", 16)} <= set(settings)
    assert ("none", 8) not in settings


@pytest.mark.proof
def test_a_search_that_finds_nothing_says_so(monkeypatch):
    chip = dataclasses.replace(hardware.CHIPS["v5e"], hbm_bytes=2**16)
    topology = dataclasses.replace(hardware.parse_topology("v5e-4"), chip=chip)
    with pytest.raises(errors.UserError, match="larger slice"):
        search.run(tiny(), topology)


def test_the_command_prints_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compile, "installed", lambda: False)
    file, numbers = tmp_path / "c.py", tmp_path / "plan.json"
    file.write_text(
        "from bertjax import config\n\n\n"
        "def get_config(arg=''):\n    return config.default('bert', 'tiny')\n"
    )
    flags = [f"--config={file}", "--topology=v5e-8", "--mesh=fsdp:8", f"--json={numbers}"]
    assert __main__.main(["plan", *flags, "--config.batch_size=64"]) == 0
    assert "v5e-8: 8 devices" in capsys.readouterr().out
    assert json.loads(numbers.read_text())["mesh"]["fsdp"] == 8
    assert __main__.main(["plan", f"--config={file}", "--topology=v9-8"]) == 2
    assert "v9-8" in capsys.readouterr().err


@needs_libtpu
def test_the_tpu_compiler_agrees_with_the_model():
    config = tiny(mesh="fsdp:4,tensor:2")
    topology = hardware.parse_topology("v5e-8")
    plan = plan_lib.make(config, topology, use_compiler=True)
    (phase,) = plan.phases
    assert plan.fits and phase.compiled.error == ""
    assert 1.0 <= phase.flops_ratio < 1.1
    assert phase.compiled.rematerialized == () and phase.compiled.open_loops == 0
    assert 0 < phase.compiled.peak < hardware.CHIPS["v5e"].hbm_bytes
    assert {"fsdp", "tensor"} <= {a for one in phase.compiled.collectives for a in one.axes}
    state = memory.state_bytes(memory.experiment_on(config, "tpu"), plan.mesh)
    known = state["params"] + state["optimizer"]
    assert known <= phase.compiled.arguments < 1.2 * known + 2**20  # with tiles and the batch


@needs_libtpu
def test_the_tpu_compiler_is_heard():
    # As in test_meshes.py: from one split to another that no exchange leads to.
    script = """
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec
from bertjax import sharding
from bertjax.runtime import hardware
libtpu = hardware.parse_topology("v5e-8").libtpu
devices = topologies.get_topology_desc(platform="tpu", **libtpu).devices
mesh = sharding.make_mesh("fsdp:2,tensor:2,sequence:2", devices)
def split(x, *axes):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))
def split_anew(x):
    x = split(jnp.cos(x), None, None, ("tensor", "fsdp"))
    return split(jnp.sin(x), "fsdp", "sequence", None)
place = NamedSharding(mesh, PartitionSpec("fsdp"))
x = jax.ShapeDtypeStruct((32, 6, 96), jnp.float32, sharding=place)
with jax.set_mesh(mesh):
    jax.jit(split_anew).lower(x).compile()
"""
    child = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **compile.ENVIRONMENT},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert compile.warnings(child.stderr)


def test_what_does_not_fit_is_a_result():
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 21.50G of 15.75G hbm."
    )
    answer = compile.error_fields(
        f"{message} Exceeded hbm capacity by 5.75G.\n\nTotal hbm usage >= 22G"
    )
    found = compile.Compiled(**answer)
    assert not found.fits and not found.error
    assert (found.peak, found.capacity) == (21.5 * 2**30, 15.75 * 2**30)
    early = "the total memory required (arguments) (1.00T) exceeds available HBM (15.75G)."
    assert compile.error_fields(early) == {"peak": 2**40, "capacity": 15.75 * 2**30}
    assert compile.Compiled(**compile.error_fields("INTERNAL: a\n b")).error == "INTERNAL: a b"
