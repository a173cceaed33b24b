"""Decides which checkpoints of a run are kept, besides the best ones."""

from collections.abc import Callable, Sequence
from typing import Any

from orbax.checkpoint.checkpoint_managers import preservation_policy


class Keep(preservation_policy.PreservationPolicy):
    """Keeps the newest checkpoint, the newest `last` regular ones, and those of some steps.

    The steps are the multiples of `every`, if it is not 0, and the `pinned` ones. A checkpoint is
    regular if it was saved on schedule, and not because the run was stopped. So a finished run has
    the same checkpoints whether it was interrupted or not.
    """

    def __init__(self, last: int, regular: Callable[[int], bool], every: int, pinned: set[int]):
        self._last, self._regular, self._every, self._pinned = last, regular, every, pinned

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: preservation_policy.PreservationContext
    ) -> list[bool]:
        """Returns for each checkpoint whether to keep it. checkpoints: in ascending order."""
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        regular = [s for s in steps if self._regular(s)]
        periodic = [s for s in regular if self._every and s % self._every == 0]
        kept = {*regular[-self._last :], *periodic, *steps[-1:], *self._pinned}
        return [step in kept for step in steps]
