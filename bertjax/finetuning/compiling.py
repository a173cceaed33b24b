"""Compiles a jitted function for every batch shape before its first call, in parallel threads.

One compilation keeps little more than one core busy. On a machine with many cores, ten
compilations in parallel take hardly longer than one.
"""

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

from bertjax.data.prepared import parallel


def for_calls(jitted: Any, calls: Sequence[tuple[Any, ...]]) -> Callable[..., Any]:
    """Returns `jitted`, compiled for calls that differ only in the shapes of their second argument.

    calls: the arguments of each call, with arrays or jax.ShapeDtypeStruct. The returned function
    raises KeyError for other shapes.
    """
    # Not traced in the pool, because the mesh is set for each thread separately.
    lowered = [jitted.lower(*call) for call in calls]
    # An interrupt waits for running compilations, but not for queued ones.
    with concurrent.futures.ThreadPoolExecutor(parallel.cpus()) as pool:
        compiled = pool.map(lambda function: function.compile(), lowered)
        by_shape = dict(zip(map(_shapes, calls), compiled, strict=True))
    return lambda *args: by_shape[_shapes(args)](*args)


def _shapes(call: tuple[Any, ...]) -> tuple:
    return tuple((name, x.shape) for name, x in sorted(call[1].items()))
