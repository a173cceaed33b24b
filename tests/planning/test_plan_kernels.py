"""Plans of configs whose attention is a kernel: platform, memory, and the TPU compiler's FLOPs."""

import pytest

from bertjax import config as config_lib
from bertjax import errors
from bertjax.planning import compile, memory
from bertjax.planning import plan as plan_lib
from bertjax.runtime import hardware

needs_libtpu = pytest.mark.skipif(not compile.installed(), reason="there is no TPU compiler")


def tiny(**overrides):
    """BERT tiny, one phase, whose heads are 64 wide."""
    config = config_lib.default("bert", "tiny")
    config.batch_size = 64
    config.num_steps = 20_000
    config.update(overrides)
    return config


def test_a_plan_with_a_kernel_is_for_its_platform():
    config = tiny(attention="splash")
    config.model.attention_dropout_rate = 0.0
    where = hardware.parse_topology("v5e-8")
    assert plan_lib.make(config, where, use_compiler=False).fits
    with pytest.raises(errors.UserError, match=r"config\.attention = 'splash'.*auto, xla or cudnn"):
        plan_lib.make(config, hardware.parse_topology("h100-8"), use_compiler=False)


@pytest.mark.parametrize(("length", "chip", "kept"), [(512, "v5e", False), (200, "v5e", True)])
def test_auto_keeps_no_scores_where_it_means_a_kernel(length, chip, kept):
    config = tiny()
    config.model.max_length = config.data.length = length
    where = hardware.parse_topology(f"{chip}-8")
    sizes = plan_lib.make(config, where, use_compiler=False).mesh
    workspace = {}
    for name in ("auto", "xla"):
        config.attention = name
        workspace[name] = memory.estimate(config, sizes, where).workspace
    assert (workspace["auto"] == workspace["xla"]) == kept
    assert workspace["auto"] <= workspace["xla"]


@needs_libtpu
def test_the_tpu_compiler_takes_the_kernel():
    config = tiny(attention="splash")
    config.model.attention_dropout_rate = 0.0
    topology = hardware.parse_topology("v5e-8")
    (phase,) = plan_lib.make(config, topology, use_compiler=True).phases
    assert phase.compiled.error == "" and phase.compiled.fits
    assert phase.compiled.silent_kernels == 3 * config.model.num_layers  # forward, dq, dk and dv
    assert phase.compiled.flops < phase.work.model_flops == phase.work.flops


@needs_libtpu
@pytest.mark.proof
@pytest.mark.parametrize("topology", ["v4-8", "v5e-8", "v5p-8", "v6e-8"])
def test_the_tpu_compiler_takes_rows_and_counts_its_flops(topology):
    config = tiny()
    config.data.length, config.model.attention_dropout_rate = 512, 0.1
    (phase,) = plan_lib.make(config, hardware.parse_topology(topology), use_compiler=True).phases
    assert phase.compiled.error == "" and phase.compiled.silent_kernels == 0
    assert 1.0 < phase.flops_ratio < 1.1, "the FLOPs of the kernel are counted"


@needs_libtpu
@pytest.mark.proof
@pytest.mark.parametrize("topology", ["v4-8", "v5e-8"])
def test_the_tpu_compiler_takes_the_terms_for_distances(topology):
    """With and without the rotation that TPUs have from v5 on."""
    config = config_lib.default("deberta", "mini")
    config.model.num_layers = config.model.generator_num_layers = 2
    config.model.vocab_size = 1000
    config.batch_size, config.num_steps = 64, 1000
    config.data.length = config.model.max_length = 512
    (phase,) = plan_lib.make(config, hardware.parse_topology(topology), use_compiler=True).phases
    assert phase.compiled.error == "" and phase.compiled.silent_kernels == 0
    assert 1.0 < phase.flops_ratio < 1.2, "the FLOPs of the kernel are counted"
