"""Plans for several slices: what devices send inside their slice, and what to other slices."""

import pytest

from bertjax import config as config_lib
from bertjax import errors
from bertjax.planning import compile, cost, report
from bertjax.planning import plan as plan_lib
from bertjax.runtime import hardware


def tiny(**overrides):
    """BERT tiny, one phase."""
    config = config_lib.default("bert", "tiny")
    config.batch_size = 64
    config.num_steps = 20_000
    config.update(overrides)
    return config


# As libtpu 0.0.42 prints a sum over two slices of eight devices.
SLICES = """HloModule m

ENTRY %main (g: bf16[64]) -> bf16[64] {
  %g = bf16[64]{0} parameter(0)
  %part = bf16[8]{0} reduce-scatter(%g), channel_id=4, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, to_apply=%add
  %token = token[] after-all()
  %send = (bf16[8]{0}, u32[], token[]) send(%part, %token), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv = (bf16[8]{0}, u32[], token[]) recv(%token), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %sent = token[] send-done(%send), channel_id=1, is_host_transfer=true
  %received = (bf16[8]{0}, token[]) recv-done(%recv), channel_id=2, is_host_transfer=true
  %sum = bf16[8]{0} get-tuple-element(%received), index=0
  ROOT %out = bf16[64]{0} all-gather(%sum), channel_id=4, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
}
"""  # noqa: E501


def test_a_sum_over_slices_is_counted_inside_and_between_them():
    mesh = {"slice": 2, "data": 8, "fsdp": 1, "tensor": 1, "sequence": 1}
    found = cost.of_text(SLICES, mesh)
    step = compile.Compiled(collectives=tuple(found.collectives()))
    assert {(c.kind, c.axes, c.group, c.bytes) for c in step.collectives} == {
        ("reduce-scatter", ("data",), 8, 128), ("all-reduce", ("slice",), 2, 16),
        ("all-gather", ("data",), 8, 128),
    }  # fmt: skip
    assert (step.ici_bytes, step.dcn_bytes) == (2 * 7 / 8 * 128, 128 / 8)
    assert found.hbm_bytes == (128 + 16) + 16 + 16 + (16 + 128)


@pytest.mark.proof
def test_a_plan_of_slices_shows_what_they_send_to_each_other():
    plan = plan_lib.make(tiny(), hardware.parse_topology("2xv5e-8"), use_compiler=False)
    assert plan.config.mesh == "slice:2,data:4,fsdp:2"
    text = "\n".join(report.lines(plan))
    assert "sent to other slices" in text and "3.125 GB/s to other slices: docs.cloud" in text
    assert plan.phases[0].roofline.dcn_s == plan.phases[0].work.dcn_bytes / 3.125e9
    v4 = plan_lib.make(tiny(), hardware.parse_topology("2xv4-16"), use_compiler=False)
    assert "between slices is not published" in "\n".join(report.lines(v4))
    with pytest.raises(errors.UserError, match="slice must be 2, the number of slices"):
        plan_lib.make(tiny(mesh="slice:4,data:4"), plan.topology, use_compiler=False)


@pytest.mark.skipif(not compile.installed(), reason="there is no TPU compiler")
@pytest.mark.parametrize("mesh", ["data:8", "fsdp:8"])
def test_the_tpu_compiler_sums_inside_slices_first(mesh):
    plan = plan_lib.make(tiny(mesh=mesh), hardware.parse_topology("2xv5e-8"), use_compiler=True)
    (phase,) = plan.phases
    assert plan.mesh["slice"] == 2 and phase.compiled.error == ""
    assert 0 < phase.work.dcn_bytes < 4 * plan.num_params / 4, "a part for each of 8 devices"
    (between,) = {c.kind for c in phase.compiled.collectives if c.is_between_slices}
    assert between == "all-reduce"
    assert "network" in phase.roofline.terms
    text = "\n".join(report.lines(plan))
    assert "sent to other slices" in text and "3.125 GB/s to other slices" in text
