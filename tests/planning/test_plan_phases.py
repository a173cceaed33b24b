"""The plan of a run with phases: each step is compiled as the phase trains it, and once."""

from bertjax import config as config_lib
from bertjax import phases as phases_lib
from bertjax.planning import compile
from bertjax.planning import plan as plan_lib
from bertjax.runtime import hardware


def test_a_phase_is_compiled_with_its_own_values_and_equal_steps_once(monkeypatch):
    configs = []

    def compile_step(config, _):
        configs.append(config)
        return compile.Compiled(error=str(len(configs)))

    monkeypatch.setattr(compile, "compile_step", compile_step)
    config = config_lib.default("bert", "tiny")
    config.update(mesh="data:8", batch_size=64, num_steps=40, phases=(
        {"num_steps": 10}, {"num_steps": 10, "objective.mask_rate": 0.3, "batch_size": 32},
        {"num_steps": 10, "optimizer.learning_rate": 1e-5},
        {"num_steps": 10, "objective.mask_rate": 0.15, "batch_size": 64},
    ))  # fmt: skip
    plan = plan_lib.make(config, hardware.parse_topology("v5e-8"), use_compiler=True)
    assert [phase.compiled.error for phase in plan.phases] == ["1", "2", "2", "1"]
    assert [(c.objective.mask_rate, c.batch_size) for c in configs] == [(0.15, 64), (0.3, 32)]
    assert [len(phases_lib.of(c)) for c in configs] == [1, 1]
