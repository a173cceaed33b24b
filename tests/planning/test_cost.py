"""Counting in the text of compiled programs: by hand, and against a compiled program."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.planning import cost, hlo
from tests.helpers import meshes

LOOP = """HloModule m

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%slice_of_layer (p: bf16[5,64,32], i: s32[]) -> bf16[64,32] {
  %p = bf16[5,64,32]{2,1,0:T(8,128)(2,1)} parameter(0)
  %i = s32[]{:T(128)S(6)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %part = bf16[1,64,32]{2,1,0} dynamic-slice(%p, %i, %zero, %zero), dynamic_slice_sizes={1,64,32}
  ROOT %flat = bf16[64,32]{1,0:T(8,128)(2,1)S(1)} bitcast(%part)
}

%body (t: (s32[], bf16[16,64], bf16[5,64,32], s32[])) -> (s32[], bf16[16,64], bf16[5,64,32], s32[]) {
  %t = (s32[], bf16[16,64]{1,0}, bf16[5,64,32]{2,1,0}, /*index=3*/s32[]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = bf16[16,64]{1,0} get-tuple-element(%t), index=1
  %w = bf16[5,64,32]{2,1,0} get-tuple-element(%t), index=2
  %n = s32[] get-tuple-element(%t), index=3
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %layer = bf16[64,32]{1,0:T(8,128)(2,1)S(1)} fusion(%w, %i), kind=kLoop, calls=%slice_of_layer
  %dot = bf16[16,32]{1,0:S(1)} dot(%x, %layer), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %y = bf16[16,64]{1,0} all-gather(%dot), channel_id=1, replica_groups=GROUPS, dimensions={1}
  ROOT %out = (s32[], bf16[16,64]{1,0}, bf16[5,64,32]{2,1,0}, s32[]) tuple(%next, %y, %w, %n)
}

%condition (t: (s32[], bf16[16,64], bf16[5,64,32], s32[])) -> pred[] {
  %t = (s32[], bf16[16,64]{1,0}, bf16[5,64,32]{2,1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] get-tuple-element(%t), index=3
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: bf16[16,64], w: bf16[5,64,32]) -> bf16[16,64] {
  %x = bf16[16,64]{1,0} parameter(0)
  %w = bf16[5,64,32]{2,1,0} parameter(1)
  %start = s32[] constant(0)
  %stop = s32[]{:T(128)} constant(5)
  %carry = (s32[], bf16[16,64]{1,0}, bf16[5,64,32]{2,1,0}, s32[]) tuple(%start, %x, %w, %stop)
  %loop = (s32[], bf16[16,64]{1,0}, bf16[5,64,32]{2,1,0}, s32[]) while(%carry), condition=%condition, body=%body
  ROOT %out = bf16[16,64]{1,0} get-tuple-element(%loop), index=1
}
"""  # noqa: E501
MESH = {"data": 2, "fsdp": 4, "tensor": 2, "sequence": 1}


def test_a_loop_counts_as_often_as_it_runs():
    found = cost.of_text(LOOP.replace("GROUPS", "[8,2]<=[16]"), MESH)
    assert found.open_loops == 0
    assert found.flops == 5 * 2 * 16 * 32 * 64
    (gather,) = found.collectives()
    assert (gather.kind, gather.count, gather.bytes) == ("all-gather", 5, 16 * 64 * 2)
    assert gather.sent_bytes == 5 * 16 * 64 * 2 // 2
    # A layer's weights and x are read, y is written; the counter's four bytes are read with them.
    assert found.hbm_bytes == 5 * (64 * 32 * 2 + 2 * 16 * 64 * 2 + 4 + 2 * 4 + 4)


def test_a_loop_without_a_known_end_is_said_and_counts_once():
    text = LOOP.replace("GROUPS", "[8,2]<=[16]")
    text = text.replace("%stop = s32[]{:T(128)} constant(5)", "%stop = s32[] parameter(2)")
    found = cost.of_text(text, MESH)
    assert (found.open_loops, found.flops) == (1, 2 * 16 * 32 * 64)


@pytest.mark.parametrize(
    ("groups", "axes", "size"),
    [
        ("[8,2]<=[16]", ("tensor",), 2),
        ("{{0,2,4,6},{1,3,5,7},{8,10,12,14},{9,11,13,15}}", ("fsdp",), 4),
        ("[4,4]<=[2,4,2]T(0,2,1)", ("fsdp",), 4),
        ("[2,8]<=[2,4,2]T(2,1,0)", ("data", "fsdp"), 8),
        ("{}", ("data", "fsdp", "tensor"), 16),
        ("mesh['a'=2,'b'=4,'c'=2] {'b'}", ("fsdp",), 4),
        ("mesh['a'=2,'b'=8] {'b':(1)4}", ("fsdp",), 4),
        ("mesh['a'=4,'b'=1,'c'=4], device_ids=([4,4]T(1,0)) {'a'}", ("fsdp", "tensor"), 4),
        ("mesh['a'=2,'b'=8] {'a','b':(4)2}", ("data", "tensor"), 4),
    ],
)
def test_groups_of_devices_are_mesh_axes(groups, axes, size):
    (gather,) = cost.of_text(LOOP.replace("GROUPS", groups), MESH).collectives()
    assert (gather.axes, gather.group) == (axes, size)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("all-reduce", 150), ("all-gather", 75), ("reduce-scatter", 75), ("collective-permute", 100)],
)
def test_bytes_that_a_ring_sends(kind, sent):
    assert cost.Collective(kind, 4, (), 100).sent_bytes == sent
    assert cost.Collective(kind, 4, (), 100, count=3).sent_bytes == 3 * sent


# As libtpu 0.0.42 prints scores of attention: batch 4 and heads 2 are windows with gaps.
CONVOLUTION = """HloModule m

ENTRY %main (q: bf16[4,128,2,64], k: bf16[4,96,2,64]) -> bf16[4,2,128,96] {
  %q = bf16[4,128,2,64]{3,2,1,0} parameter(0)
  %k = bf16[4,96,2,64]{3,2,1,0} parameter(1)
  ROOT %scores = bf16[4,2,128,96]{3,2,1,0} convolution(%q, %k), window={WINDOW}, dim_labels=0b1f_0o1i->01bf
}
"""  # noqa: E501


@pytest.mark.parametrize(
    "window", ["size=4x2 stride=3x1 lhs_dilate=4x2", "size=4x2 pad=0_0x1_1 rhs_reversal=1x1"]
)
def test_convolutions_count_what_is_real(window):
    # The second window is no batch along axis 0 but a sum over it, of one place: the first.
    found = cost.of_text(CONVOLUTION.replace("WINDOW", window), MESH)
    product = 2 * 128 * 96 * 64
    real = 4 * 2 if "dilate" in window else (4 + 3 + 2 + 1) * (1 + 2)
    assert found.flops == real * product


def test_the_pieces_of_an_asynchronous_collective_are_one():
    text = """HloModule m

%start (p: f32[8]) -> (f32[8], f32[32], u32[]) {
  %p = f32[8]{0} parameter(0)
  %g = f32[32]{0} all-gather(%p), channel_id=7, replica_groups=[4,4]<=[16], dimensions={0}
  ROOT %c = (f32[8]{0}, f32[32]{0}, u32[]{:S(2)}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%end (p: f32[8], o: f32[32], s: u32[]) -> f32[32] {
  %p = f32[8]{0} parameter(0)
  %o = f32[32]{0} parameter(1)
  %s = u32[]{:S(2)} parameter(2)
  %g = f32[32]{0} all-gather(%p), channel_id=7, replica_groups=[4,4]<=[16], dimensions={0}
  ROOT %c = f32[32]{0} custom-call(%p, %o, %g, %s), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (x: f32[8]) -> f32[32] {
  %x = f32[8]{0} parameter(0)
  %f = (f32[8]{0}, f32[32]{0}, u32[]{:S(2)}) fusion(%x), kind=kCustom, calls=%start
  %a = f32[8]{0} get-tuple-element(%f), index=0
  %b = f32[32]{0} get-tuple-element(%f), index=1
  %c = u32[]{:S(2)} get-tuple-element(%f), index=2
  ROOT %y = f32[32]{0} fusion(%a, %b, %c), kind=kCustom, calls=%end
}
"""  # noqa: E501
    found = cost.of_text(text, MESH)
    (gather,) = found.collectives()
    assert (gather.count, gather.bytes, gather.group) == (1, 128, 4)
    assert gather.hbm_bytes == 32 + 128  # its operand is read and its result is written, once


def test_sums_with_one_channel_are_counted_each():
    text = """HloModule m

ENTRY %main (a: f32[8], b: f32[4]) -> (f32[8], f32[4]) {
  %a = f32[8]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %x = f32[8]{0} all-reduce(%a), channel_id=1, replica_groups=[1,16]<=[16], to_apply=%add
  %y = f32[4]{0} all-reduce(%b), channel_id=1, replica_groups=[1,16]<=[16], to_apply=%add
  ROOT %t = (f32[8]{0}, f32[4]{0}) tuple(%x, %y)
}
"""
    assert [one.bytes for one in cost.of_text(text, MESH).collectives()] == [32, 16]


def test_a_collective_that_overlaps_with_a_loop_is_one():
    piece = """%piece (d: bf16[16,32]) -> bf16[16,64] {\n  %d = bf16[16,32] parameter(0)
  ROOT %g = bf16[16,64] all-gather(%d), channel_id=1, replica_groups=[8,2]<=[16]\n}\n\n"""
    text = LOOP.replace("all-gather(%dot)", "fusion(%dot), kind=kCustom, calls=%piece")
    text = text.replace("%body (", f"{piece}%body (", 1)
    start = "  %s = bf16[16,64] fusion(%x), kind=kCustom, calls=%piece\n  %carry ="
    found, inside = (cost.of_text(t, MESH) for t in (text.replace("  %carry =", start), text))
    (gather,) = found.collectives()
    assert gather.count == 1
    # The operand of each piece is [16, 32], the result [16, 64], in bfloat16.
    assert gather.hbm_bytes == 2 * 16 * (32 + 64)
    assert inside.collectives()[0].hbm_bytes == 5 * gather.hbm_bytes
    assert found.hbm_bytes == inside.hbm_bytes - 4 * gather.hbm_bytes


def test_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.parse("HloModule m\n")


def test_a_compiled_program_counts_as_by_hand():
    layers, rows, width = 7, 64, 32
    mesh = meshes.of(1, 4, 2)

    def loss(weights, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0])

    def place(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    weights = jax.ShapeDtypeStruct((layers, width, width), jnp.float32, sharding=place())
    x = jax.ShapeDtypeStruct((rows, width), jnp.float32, sharding=place("fsdp"))
    step = jax.jit(jax.grad(loss), out_shardings=place())
    found = cost.of_text(step.lower(weights, x).compile().as_text(), dict(mesh.shape))
    assert found.open_loops == 0
    assert found.flops == layers * 3 * 2 * (rows // 4) * width * width
    summed = [one for one in found.collectives() if one.kind == "all-reduce"]
    assert sum(one.count * one.bytes for one in summed) == 4 * layers * width * width
    assert {one.axes for one in summed} == {("fsdp",)}
