"""Costs of a compiled program on one device: FLOPs, HBM traffic, bytes sent between devices.

The body of a loop is counted as many times as it runs, unlike in `Compiled.cost_analysis`. For a
conditional, only the most expensive branch is counted. FLOPs are those of matrix products only, as
in the families' `flops_per_sequence`. HBM traffic is the bytes that operations read from and write
to HBM. If an operation uses only a slice of a stacked array, only the slice is counted. Arrays that
the compiler keeps in on-chip memory are not counted.

The TPU compiler splits a collective over several slices into collectives inside each slice, and
transfers between slices, which are pairs of a send and a receive. A transfer of type ALL_REDUCE is
counted as an all-reduce over the mesh axis `slice`.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.planning import hlo, replica_groups

COLLECTIVES = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
_NO_TRAFFIC = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "opt-barrier", "while", "conditional", "call",
}  # fmt: skip
_SLICES = {"dynamic-slice", "slice", "gather"}
# Each of these copies its operand without computing. In a fusion only the bytes that other
# instructions use are read.
_SAME_BYTES = {"bitcast", "reshape", "copy", "transpose"}


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective, which runs `count` times per step.

    kind: one of COLLECTIVES. group: the number of devices in a group. axes: the mesh axes that the
    group spans. bytes: the size of the array on a device in one run: of the result for all-gather,
    of the operand for the other collectives. hbm_bytes: the HBM traffic of all runs together.
    """

    kind: str
    group: int
    axes: tuple[str, ...]
    bytes: int
    count: int = 1
    hbm_bytes: int = 0

    @property
    def sent_bytes(self) -> int:
        """Returns the bytes that a device sends in a step with (optimal) ring algorithms.

        In a group of n devices, each sends (n - 1) / n of the array. For an all-reduce, which is a
        reduce-scatter and an all-gather, it sends twice that (Chan et al., "Collective
        communication: theory, practice, and experience", 2007, table 1). In a permute or broadcast
        it sends the whole array.
        """
        if self.kind in ("collective-permute", "collective-broadcast"):
            return self.count * self.bytes
        rounds = 2 if self.kind == "all-reduce" else 1
        return self.count * rounds * self.bytes * (self.group - 1) // max(self.group, 1)

    def times(self, count: int) -> "Collective":
        """Returns the collective that runs `count` times as often."""
        sums = {"count": self.count * count, "hbm_bytes": self.hbm_bytes * count}
        return dataclasses.replace(self, **sums)

    @property
    def is_between_slices(self) -> bool:
        """Returns whether the group spans several slices."""
        return "slice" in self.axes


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one step on one device.

    other_bytes: the HBM traffic of all that is not a collective.
    exchanges: {key: collective}. The key of a collective in a fusion is its kind, channel and
    bytes, which all parts of an asynchronous collective share, so that it is counted once. Outside
    fusions, the key contains the name: the sums of `jax.shard_map` share one channel.
    open_loops: the number of loops whose trip count is unknown; their bodies are counted once.
    silent_kernels: the number of runs of Pallas kernels without a cost estimate; their FLOPs are
    counted as 0.
    """

    flops: int = 0
    other_bytes: int = 0
    exchanges: Mapping[str, Collective] = dataclasses.field(default_factory=dict)
    open_loops: int = 0
    silent_kernels: int = 0

    @property
    def hbm_bytes(self) -> int:
        """Returns the HBM traffic in bytes, that of the collectives included."""
        return self.other_bytes + sum(c.hbm_bytes for c in self.exchanges.values())

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.other_bytes + other.other_bytes,
            {**self.exchanges, **other.exchanges},
            self.open_loops + other.open_loops,
            self.silent_kernels + other.silent_kernels,
        )

    def times(self, count: int, prefix: str) -> "Cost":
        """Returns the cost of `count` runs. prefix: makes the keys of bodies distinct."""
        exchanges = {
            f"{prefix}/{key}": collective.times(count) for key, collective in self.exchanges.items()
        }
        sums = self.flops * count, self.other_bytes * count
        return Cost(*sums, exchanges, self.open_loops, self.silent_kernels * count)

    def without_overlapped(self) -> "Cost":
        """Returns the cost without the parts, in a loop, of collectives that overlap with it."""
        keys = [k for k in self.exchanges if "/" not in k or k.split("/")[-1] not in self.exchanges]
        return dataclasses.replace(self, exchanges={key: self.exchanges[key] for key in keys})

    def collectives(self) -> list[Collective]:
        """Returns the collectives by descending bytes sent; equal ones are merged."""
        counts: dict[Collective, int] = collections.Counter()
        traffic: dict[Collective, int] = collections.Counter()
        for collective in self.exchanges.values():
            key = dataclasses.replace(collective, count=1, hbm_bytes=0)
            counts[key] += collective.count
            traffic[key] += collective.hbm_bytes
        merged = [
            dataclasses.replace(key, count=count, hbm_bytes=traffic[key])
            for key, count in counts.items()
        ]
        return sorted(merged, key=lambda collective: -collective.sent_bytes)


def of_text(text: str, mesh_sizes: Mapping[str, int]) -> Cost:
    """Returns the cost of a program that XLA printed. mesh_sizes: {axis: size}, in mesh order."""
    return _Counter(hlo.parse(text), mesh_sizes).entry()


class _Counter:
    def __init__(self, module: hlo.Module, mesh_sizes: Mapping[str, int]):
        self._module, self._mesh_sizes = module, mesh_sizes

    def entry(self) -> Cost:
        return self._cost(self._module.entry.name, False)

    @functools.cache  # noqa: B019  (there is one counter per program)
    def _cost(self, name: str, fused: bool) -> Cost:
        """Returns the cost of computation `name`.

        fused: whether it is the body of a fusion, whose instructions cause no HBM traffic.
        """
        computation = self._module.computations[name]
        total = Cost()
        for instruction in computation.instructions:
            total += self._instruction(computation, instruction, fused)
        return total.without_overlapped()

    def _instruction(self, computation: hlo.Computation, op: hlo.Instruction, fused: bool) -> Cost:
        kind = op.opcode.removesuffix("-start")
        if op.opcode.endswith(("-done", "-update")):
            return Cost()
        if kind in COLLECTIVES:
            return self._collective(computation, op, kind, fused)
        if op.opcode in ("send", "recv"):
            return self._transfer(computation, op)
        if op.opcode == "while":
            count = self._module.trip_count(computation, op)
            body = self._cost(op.called("body")[0], fused).times(count or 1, op.name)
            return dataclasses.replace(body, open_loops=body.open_loops + (count is None))
        if op.opcode == "conditional":
            names = op.called("branch_computations", "true_computation", "false_computation")
            branches = [self._cost(name, fused) for name in names]
            return max(branches, key=lambda cost: (cost.flops, cost.hbm_bytes)).times(1, op.name)
        if op.opcode in ("call", "async-start"):
            names = op.called("to_apply", "calls", "called_computation")
            return sum((self._cost(n, fused).times(1, op.name) for n in names), Cost())
        if op.opcode == "fusion":
            inner = self._cost(op.called("calls")[0], True)
            if op.called("calls")[0].startswith("all-reduce-scatter"):
                inner = self._as_reduce_scatter(op, inner)
            return inner if fused else inner + Cost(other_bytes=self._fusion_bytes(computation, op))
        flops, traffic = _flops(computation, op), 0 if fused else _hbm_bytes(computation, op)
        no_estimate = 'custom_call_target="tpu_custom_call"' in op.attributes and not flops
        return Cost(flops, traffic, silent_kernels=int(no_estimate))

    def _collective(
        self, computation: hlo.Computation, op: hlo.Instruction, kind: str, fused: bool
    ) -> Cost:
        operands = [computation.by_name[name].array for name in op.operands]
        # A "-start" returns (operands, results, ...); all-reduce-start returns only the results.
        results = op.arrays[len(operands) : 2 * len(operands)] or op.arrays
        arrays = results if kind == "all-gather" else operands
        all_devices = list(range(math.prod(self._mesh_sizes.values())))
        group = replica_groups.first(op) or all_devices
        if len(group) < 2:
            return Cost()
        traffic = sum(array.hbm_bytes for array in (*operands, *results))
        num_bytes = sum(array.bytes for array in arrays)
        collective = Collective(kind, len(group), self._axes(group), num_bytes, 1, traffic)
        key = op.name
        if fused and (channel := op.attribute("channel_id")):
            key = f"{kind} {channel} {collective.bytes}"
        return Cost(exchanges={key: collective})

    def _transfer(self, computation: hlo.Computation, op: hlo.Instruction) -> Cost:
        """Returns the cost of a send or a receive: one half of a transfer between slices.

        The bytes are counted at the send. Transfers to the host are counted only as HBM traffic.
        """
        if op.opcode == "recv":
            return Cost(other_bytes=op.array.hbm_bytes)
        array = computation.by_name[op.operands[0]].array
        match = re.search(r'_xla_megascale_transfer_type="(\w+)"', op.attributes)
        if not match:
            return Cost(other_bytes=array.hbm_bytes)
        kind, slices = match[1].lower().replace("_", "-"), self._mesh_sizes["slice"]
        if kind not in COLLECTIVES:
            kind = "collective-permute"
        whole = array.bytes * slices if kind == "all-gather" else array.bytes
        transfer = Collective(kind, slices, ("slice",), whole, 1, array.hbm_bytes)
        return Cost(exchanges={f"send {op.name}": transfer})

    def _as_reduce_scatter(self, fusion: hlo.Instruction, fusion_cost: Cost) -> Cost:
        """Returns `fusion_cost`, the cost of `fusion`, with all-reduces as reduce-scatters.

        On a TPU, XLA writes a reduce-scatter as a fusion of an all-reduce and a slice.
        """
        exchanges = {
            channel: dataclasses.replace(collective, kind="reduce-scatter")
            for channel, collective in fusion_cost.exchanges.items()
        }
        return dataclasses.replace(fusion_cost, exchanges=exchanges)

    def _axes(self, group: Sequence[int]) -> tuple[str, ...]:
        """Returns the mesh axes along which the devices of the group have different positions."""
        sizes = tuple(self._mesh_sizes.values())
        if len(group) < 2 or max(group) >= math.prod(sizes):
            return ()
        positions = np.stack(np.unravel_index(np.array(group), sizes))
        varies = (positions != positions[:, :1]).any(axis=1)
        return tuple(axis for axis, v in zip(self._mesh_sizes, varies, strict=True) if v)

    def _fusion_bytes(self, computation: hlo.Computation, op: hlo.Instruction) -> int:
        body = self._module.computations[op.called("calls")[0]]
        total = 0
        for number, name in enumerate(op.operands):
            source = computation.by_name[name]
            if len(source.arrays) == 1 and not source.array.on_chip:
                total += self._read_bytes(body, body.parameters[number].name)
        outputs = body.root.operands if body.root.opcode == "tuple" else (body.root.name,)
        pairs = zip(outputs, op.arrays, strict=False)
        return total + sum(self._written_bytes(body, name) for name, a in pairs if not a.on_chip)

    def _read_bytes(self, body: hlo.Computation, name: str) -> int:
        """Returns how many bytes of the array `name` are read within a fusion."""
        array_bytes = sum(array.bytes for array in body.by_name[name].arrays)
        total = 0
        for user in body.users[name]:
            is_first = user.operands[0] == name
            if user.opcode in _SLICES and is_first:
                total += user.array.bytes
            elif user.opcode in _SAME_BYTES or "output_to_operand_aliasing" in user.attributes:
                total += self._read_bytes(body, user.name)
            elif user.opcode == "fusion":
                callee = self._module.computations[user.called("calls")[0]]
                numbers = [n for n, operand in enumerate(user.operands) if operand == name]
                total += sum(self._read_bytes(callee, callee.parameters[n].name) for n in numbers)
            elif not (
                _is_pass_through(user) or (user.opcode == "dynamic-update-slice" and is_first)
            ):
                return array_bytes
        return min(total, array_bytes)

    def _written_bytes(self, body: hlo.Computation, name: str) -> int:
        """Returns how many bytes a fusion writes to return the array `name`."""
        op = body.by_name[name]
        if op.opcode in ("bitcast", "reshape") and op.operands:
            return self._written_bytes(body, op.operands[0])
        if op.opcode == "dynamic-update-slice":
            return body.by_name[op.operands[1]].array.bytes
        if op.opcode == "fusion":
            callee = self._module.computations[op.called("calls")[0]]
            if callee.root.opcode != "tuple":
                return self._written_bytes(callee, callee.root.name)
        if op.opcode == "parameter" or _is_pass_through(op):
            return 0
        return sum(array.bytes for array in op.arrays)


def _is_pass_through(op: hlo.Instruction) -> bool:
    is_async = "AsyncCollective" in op.attributes
    return op.opcode in ("tuple", "get-tuple-element", *COLLECTIVES) or is_async


def _hbm_bytes(computation: hlo.Computation, op: hlo.Instruction) -> int:
    """Returns the bytes of HBM traffic of an instruction that is outside a fusion.

    The traffic of an asynchronous operation is counted at its "-start".
    """
    if op.opcode in _NO_TRAFFIC or 'custom_call_target="AllocateBuffer"' in op.attributes:
        return 0
    operands = [computation.by_name[name] for name in op.operands]
    arrays = [array for operand in operands for array in operand.arrays]
    results = op.arrays
    if op.opcode == "copy-start":  # returns (result, operand, ...)
        results = op.arrays[:1]
    elif op.opcode.endswith("-start"):  # returns (operands, result, ...)
        results = op.arrays[len(arrays) : len(arrays) + 1]
    kind = op.opcode.removesuffix("-start")
    if kind in _SLICES:
        return results[0].hbm_bytes + (0 if arrays[0].on_chip else results[0].bytes)
    if kind in ("dynamic-update-slice", "scatter"):
        update = arrays[1 if kind == "dynamic-update-slice" else len(arrays) - 1]
        return update.hbm_bytes + (0 if results[0].on_chip else update.bytes)
    return sum(array.hbm_bytes for array in (*arrays, *results))


def _flops(computation: hlo.Computation, op: hlo.Instruction) -> int:
    if op.opcode == "dot":
        lhs = computation.by_name[op.operands[0]].array.shape
        num_contracted = math.prod(lhs[axis] for axis in op.numbers("lhs_contracting_dims"))
        return 2 * op.array.size * num_contracted
    if op.opcode == "convolution":
        return _convolution_flops(computation, op)
    if op.opcode == "custom-call":  # a Pallas kernel may carry an estimate of its cost
        match = re.search(r'"cost_estimate"\D*"flops":\s*"?(\d+)', op.attributes)
        return int(match[1]) if match else 0
    return 0


def _convolution_flops(computation: hlo.Computation, op: hlo.Instruction) -> int:
    """Returns the FLOPs of a convolution: two per multiply-add of two array elements.

    On a TPU, XLA writes batched matrix products as convolutions. A window over a batch axis then
    contains one array element; its other positions are padding, or gaps between dilated elements.
    Multiply-adds with these are not counted.
    """
    lhs, rhs = (computation.by_name[name].array.shape for name in op.operands[:2])
    lhs_dims, rhs_dims, out_dims = re.split("_|->", op.attribute("dim_labels"))
    window = dict(part.split("=") for part in (op.attribute("window") or "{}")[1:-1].split())
    num_pairs = 1
    for number, axis in enumerate(sorted(label for label in out_dims if label.isdigit())):

        def field(name: str, default: str, number: int = number) -> str:
            return window[name].split("x")[number] if name in window else default

        start = np.arange(op.array.shape[out_dims.index(axis)])[:, None] * int(field("stride", "1"))
        offset = np.arange(rhs[rhs_dims.index(axis)]) * int(field("rhs_dilate", "1"))
        dilation = int(field("lhs_dilate", "1"))
        index = start + offset - int(field("pad", "0_0").split("_")[0])
        is_element = (
            (index % dilation == 0) & (0 <= index) & (index // dilation < lhs[lhs_dims.index(axis)])
        )
        num_pairs *= int(is_element.sum())
    groups = int(op.attribute("batch_group_count") or 1)
    batch, features = lhs[lhs_dims.index("b")] // groups, op.array.shape[out_dims.index("f")]
    return 2 * num_pairs * batch * features * rhs[rhs_dims.index("i")]
