"""Parses the text of compiled programs: computations, instructions, shapes, trip counts.

    module = hlo.parse(compiled.as_text())
    for instruction in module.entry.instructions: ...

The input is the text that XLA's `HloModule::ToString` returns after optimisation. In this text
operands are printed as names, without their shapes. For the meaning of instructions see
https://openxla.org/xla/operation_semantics.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_BITS = {"pred": 8, "token": 0, "opaque": 0}  # other names contain the width: bf16
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_HEADER = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")
_IDENTITY_OPS = {"copy", "bitcast", "convert", "reshape"}  # ops that do not change a number


@dataclasses.dataclass(frozen=True)
class Array:
    """The dtype and shape of an array. on_chip: whether it is in on-chip memory, not in HBM."""

    dtype: str
    shape: tuple[int, ...]
    on_chip: bool

    @property
    def size(self) -> int:
        """Returns the number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Returns the size of the array in bytes, without the padding of tiles."""
        match = re.match(r"[a-z]+(\d+)", self.dtype)
        bits = _BITS[self.dtype] if self.dtype in _BITS else int(match[1]) if match else 8
        return -(-self.size * bits // 8)

    @property
    def hbm_bytes(self) -> int:
        """Returns the size in HBM in bytes: 0 for an array in on-chip memory."""
        return 0 if self.on_chip else self.bytes


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction, printed as `%name = arrays opcode(operands), attributes`.

    arrays: the results; several if the result is a tuple.
    """

    name: str
    arrays: tuple[Array, ...]
    opcode: str
    operands: tuple[str, ...]
    inner: str  # the text between the parentheses
    attributes: str
    is_root: bool

    @property
    def array(self) -> Array:
        """Returns the first result."""
        return self.arrays[0]

    def attribute(self, name: str) -> str | None:
        """Returns the text of attribute `name`, like "{1,2}", "%body" or "5"; None if absent."""
        match = re.search(rf"\b{name}=(\{{[^{{}}]*\}}|[^,\s]+)", self.attributes)
        return match[1] if match else None

    def numbers(self, name: str) -> tuple[int, ...]:
        """Returns the numbers in attribute `name`: (1, 2) for "{1,2}"; () if it is absent."""
        return tuple(map(int, re.findall(r"-?\d+", self.attribute(name) or "")))

    def called(self, *names: str) -> list[str]:
        """Returns the names of the computations in the attributes `names`."""
        texts = (self.attribute(name) for name in names)
        return [name for text in texts if text for name in _NAME.findall(text)]


@dataclasses.dataclass(frozen=True)
class Computation:
    """A list of instructions in the order in which they run."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Returns {name: instruction}."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Returns {name of an instruction: the instructions that have it as an operand}."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.by_name}
        for instruction in self.instructions:
            for name in dict.fromkeys(instruction.operands):
                users[name].append(instruction)
        return users

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Returns {number: parameter instruction}."""
        parameters = (i for i in self.instructions if i.opcode == "parameter")
        return {int(i.inner): i for i in parameters}

    @property
    def root(self) -> Instruction:
        """Returns the root instruction, whose result is the result of the computation."""
        return next(i for i in self.instructions if i.is_root)


@dataclasses.dataclass(frozen=True)
class Module:
    """The whole program of one device."""

    computations: dict[str, Computation]
    entry: Computation

    def trip_count(self, computation: Computation, loop: Instruction) -> int | None:
        """Returns how many times the while loop `loop` in `computation` runs; None if unknown.

        The count is known if XLA recorded it (known_trip_count). It is also known if the counter
        starts at a constant and the loop's condition compares the counter with a constant limit.
        Each constant may be an element of the tuple that the loop carries.
        """
        recorded = re.search(r'known_trip_count\D*"n":"(\d+)"', loop.attributes)
        if recorded:
            return int(recorded[1])
        condition = self.computations[loop.called("condition")[0]]
        comparison = condition.root
        if comparison.opcode != "compare" or comparison.attribute("direction") not in ("LT", "LE"):
            return None
        init = computation.by_name[loop.operands[0]]

        def first_value(name: str) -> int | None:
            instruction = condition.by_name[name]
            if instruction.opcode != "get-tuple-element":
                return _constant(condition, name)
            if init.opcode != "tuple":
                return None
            return _constant(computation, init.operands[instruction.numbers("index")[0]])

        start, limit = (first_value(name) for name in comparison.operands)
        step = self._step(loop, condition.by_name[comparison.operands[0]])
        if start is None or limit is None or not step:
            return None
        return max(0, -(-(limit + (comparison.attribute("direction") == "LE") - start) // step))

    def _step(self, loop: Instruction, counter: Instruction) -> int | None:
        """Returns the constant that the body adds to `counter`; 1 if no constant is found.

        Returns None if `counter` is not an element of the tuple that the loop carries.
        """
        body = self.computations[loop.called("body")[0]]
        if counter.opcode != "get-tuple-element" or body.root.opcode != "tuple":
            return None
        update = body.by_name[body.root.operands[counter.numbers("index")[0]]]
        while update.opcode in _IDENTITY_OPS:
            update = body.by_name[update.operands[0]]
        constants = [_constant(body, name) for name in update.operands]
        steps = [number for number in constants if number is not None]
        return steps[0] if update.opcode == "add" and steps else 1


def _constant(computation: Computation, name: str) -> int | None:
    instruction = computation.by_name[name]
    while instruction.opcode in _IDENTITY_OPS:
        instruction = computation.by_name[instruction.operands[0]]
    is_integer = re.fullmatch(r"-?\d+", instruction.inner)
    return int(instruction.inner) if instruction.opcode == "constant" and is_integer else None


def parse(text: str) -> Module:
    """Parses the text of a program. Raises ValueError if it has no ENTRY computation."""
    computations, entry = {}, None
    name, is_entry, lines = "", False, []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            name, is_entry, lines = header[2], bool(header[1]), []
        elif line == "}" and name:
            computations[name] = Computation(name, tuple(map(_instruction, lines)))
            entry = computations[name] if is_entry else entry
            name = ""
        elif name and _LINE.match(line):
            lines.append(line)
    if entry is None:
        raise ValueError("the text has no ENTRY computation")
    return Module(computations, entry)


def arrays(text: str) -> Iterator[Array]:
    """Yields the arrays of a shape like "f32[2,3]{1,0:T(8,128)S(1)}", or of a tuple of shapes.

    S(n) with n above 0 stands for on-chip memory: VMEM, scalar memory or semaphores.
    """
    for dtype, dims, layout in _ARRAY.findall(text):
        shape = tuple(int(size) for size in re.findall(r"\d+", dims))
        yield Array(dtype, shape, bool(re.search(r"S\([1-9]", layout)))


def _instruction(line: str) -> Instruction:
    is_root, name, rest = _LINE.match(line).groups()
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    end = _closing(rest, len(opcode))
    inner, attributes = rest[len(opcode) + 1 : end], rest[end + 1 :].lstrip(", ")
    return Instruction(
        name=name,
        arrays=tuple(arrays(re.sub(r"/\*.*?\*/", "", shape))),
        opcode=opcode,
        operands=tuple(_NAME.findall(inner)),
        inner=inner,
        attributes=attributes,
        is_root=bool(is_root),
    )


def _closing(text: str, start: int) -> int:
    """Returns the index of the parenthesis that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if not depth:
            return index
    raise ValueError(f"a parenthesis is not closed: {text[:80]}")
