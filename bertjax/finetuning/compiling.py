"""Compiles jitted functions for every batch shape before their first call, in parallel threads.

One compilation keeps little more than one core busy. On a machine with many cores, ten
compilations in parallel take hardly longer than one. Fine-tunings in one process share programs:
two functions whose lowered programs are equal are compiled once.
"""

import concurrent.futures
import hashlib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import jax

from bertjax.data.prepared import parallel

Programs = MutableMapping[Any, Any]  # {identity of a lowered program: the compiled program}


def for_calls(
    functions: Sequence[tuple[Any, Sequence[tuple[Any, ...]]]], programs: Programs | None = None
) -> list[Callable[..., Any]]:
    """Returns each jitted function, compiled for its calls, all of them at the same time.

    functions: pairs of a jitted function and the arguments of its calls, with arrays or
    jax.ShapeDtypeStruct; calls differ only in the shapes of their second argument. programs:
    compiled programs that are used again; new ones are added. The returned functions raise KeyError
    for other shapes.
    """
    programs = {} if programs is None else programs
    identities, compiling = [], {}
    # An interrupt waits for running compilations, but not for queued ones.
    with concurrent.futures.ThreadPoolExecutor(parallel.cpus()) as pool:
        for jitted, calls in functions:
            by_shapes = {}
            for call in calls:
                # Not traced in the pool, because the mesh is set for each thread separately. The
                # pool compiles while this thread traces the next program.
                lowered = jitted.lower(*call)
                identity = by_shapes[_shapes(call)] = _identity(lowered)
                if identity not in programs and identity not in compiling:
                    compiling[identity] = pool.submit(lowered.compile)
            identities.append(by_shapes)
        programs.update({identity: done.result() for identity, done in compiling.items()})
    return [
        _by_shapes({shapes: programs[identity] for shapes, identity in by_shapes.items()})
        for by_shapes in identities
    ]


def _by_shapes(programs: Mapping[tuple, Callable]) -> Callable[..., Any]:
    return lambda *call: programs[_shapes(call)](*call)


def _identity(lowered: Any) -> tuple[Any, ...]:
    """Returns a key that two lowered programs share only if one compilation serves both.

    The text of a program contains its constants, shardings and donated arguments, but not the
    arguments that it does not use, whose shapes a compiled program checks nevertheless.
    """
    text = str(lowered.compiler_ir(dialect="stablehlo"))
    digest = hashlib.sha256(text.encode()).digest()
    infos, tree = jax.tree.flatten(lowered.args_info)
    shapes = tuple((info.shape, info.dtype) for info in infos)
    return digest, lowered.in_tree, lowered.out_tree, tree, shapes


def _shapes(call: tuple[Any, ...]) -> tuple:
    leaves, tree = jax.tree.flatten(call[1])
    return tree, tuple(x.shape for x in leaves)
