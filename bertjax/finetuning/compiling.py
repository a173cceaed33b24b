"""A jitted function, compiled for every shape of its batches before the first call, in threads.

A compilation keeps little more than one core busy: where there are many, ten shapes take hardly
longer than one.
"""

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

from bertjax.data.prepared import parallel


def for_calls(jitted: Any, calls: Sequence[tuple[Any, ...]]) -> Callable[..., Any]:
    """`jitted` for calls like these, which differ in the shapes of their second argument alone.

    calls: arguments, or what they look like (jax.ShapeDtypeStruct). KeyError for other shapes.
    """
    lowered = [jitted.lower(*call) for call in calls]  # here: a mesh is set for one thread only
    # An interrupt waits for what is being compiled, not for what has yet to be.
    with concurrent.futures.ThreadPoolExecutor(parallel.cpus()) as pool:
        compiled = pool.map(lambda each: each.compile(), lowered)
        by_shape = dict(zip(map(_shapes, calls), compiled, strict=True))
    return lambda *args: by_shape[_shapes(args)](*args)


def _shapes(call: tuple[Any, ...]) -> tuple:
    return tuple((name, x.shape) for name, x in sorted(call[1].items()))
