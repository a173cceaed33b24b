"""Compiles a jitted function for every batch shape before its first call, in parallel threads.

One compilation keeps little more than one core busy. On a machine with many cores, ten
compilations in parallel take hardly longer than one. Fine-tunings in one process share programs:
two functions whose lowered programs are equal are compiled once.
"""

import concurrent.futures
import hashlib
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import jax

from bertjax.data.prepared import parallel

Programs = MutableMapping[Any, Any]  # {identity of a lowered program: the compiled program}


def for_calls(
    jitted: Any, calls: Sequence[tuple[Any, ...]], programs: Programs | None = None
) -> Callable[..., Any]:
    """Returns `jitted`, compiled for calls that differ only in the shapes of their second argument.

    calls: the arguments of each call, with arrays or jax.ShapeDtypeStruct. programs: compiled
    programs that are used again; new ones are added. The returned function raises KeyError for
    other shapes.
    """
    programs = {} if programs is None else programs
    by_shape, compiling = {}, {}
    # An interrupt waits for running compilations, but not for queued ones.
    with concurrent.futures.ThreadPoolExecutor(parallel.cpus()) as pool:
        for call in calls:
            # Not traced in the pool, because the mesh is set for each thread separately. The pool
            # compiles while this thread traces the next program.
            lowered = jitted.lower(*call)
            identity = by_shape[_shapes(call)] = _identity(lowered)
            if identity not in programs and identity not in compiling:
                compiling[identity] = pool.submit(lowered.compile)
        programs.update({identity: done.result() for identity, done in compiling.items()})
    by_shape = {shapes: programs[identity] for shapes, identity in by_shape.items()}
    return lambda *args: by_shape[_shapes(args)](*args)


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
    return tuple((name, x.shape) for name, x in sorted(call[1].items()))
