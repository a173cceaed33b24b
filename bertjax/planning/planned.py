"""Plans a run as the command `bertjax plan` and the function `bertjax.plan` do.

planned = plan("configs/bert_large.py", topology="v5e-16", price=1.2)
planned.fits, planned.hours, planned.cost
print(planned)                       # the report of `bertjax plan`
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import ml_collections

from bertjax import errors, html_tables
from bertjax.artifact import initial
from bertjax.planning import plan as plan_lib
from bertjax.planning import report, search
from bertjax.runtime import hardware


@dataclasses.dataclass(frozen=True, repr=False)
class Planned:
    """A plan of a run, with its price.

    plan: all numbers, a `planning.plan.Plan`. price: the price of one chip for one hour, or None.
    """

    plan: plan_lib.Plan
    price: float | None = None

    @property
    def fits(self) -> bool:
        """Returns whether the run fits in the memory of the devices."""
        return self.plan.fits

    @property
    def hours(self) -> float | None:
        """Returns the lower bound on the run's hours; None if the chip's peak is unknown."""
        return self.plan.hours

    @property
    def usual_hours(self) -> float | None:
        """Returns the run's hours at a usual MFU; None if the chip's peak is unknown."""
        return self.plan.usual_hours

    @property
    def cost(self) -> float | None:
        """Returns the price of `hours` on all chips; None if either is unknown."""
        return report.cost(self.plan, self.price)

    def lines(self) -> list[str]:
        """Returns the lines of the report that `bertjax plan` prints."""
        return list(report.lines(self.plan, self.price))

    def to_json(self) -> dict[str, Any]:
        """Returns all numbers as a JSON object, in bytes, FLOPs, seconds and hours."""
        return report.to_json(self.plan, self.price)

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """Returns the report as a table, for notebooks."""
        header, rows = report.table(self.plan, self.price)
        return html_tables.table([], rows, header)


@dataclasses.dataclass(frozen=True, repr=False)
class Searched:
    """The result of a search: the best plans first, at most four.

    num_fitting: how many combinations of mesh, micro-batch size and remat fit by estimate.
    """

    candidates: tuple[search.Candidate, ...]
    num_fitting: int
    price: float | None = None

    @property
    def best(self) -> Planned:
        """Returns the best plan."""
        return Planned(self.candidates[0].plan, self.price)

    def lines(self) -> list[str]:
        """Returns the lines that `bertjax plan --search` prints."""
        return list(report.search_lines(self.candidates, self.num_fitting))

    def to_json(self) -> list[dict[str, Any]]:
        """Returns all numbers of each plan, see `Planned.to_json`."""
        return [report.to_json(candidate.plan, self.price) for candidate in self.candidates]

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """Returns a table of the plans, for notebooks."""
        rows = [report.search_row(candidate) for candidate in self.candidates]
        caption = f"{self.num_fitting:,} combinations fit by estimate; the best of them"
        return html_tables.table(report.SEARCH_HEADER, rows, caption)


def plan(
    config: ml_collections.ConfigDict | str | os.PathLike | None,
    overrides: Mapping[str, Any],
    *,
    price: float | None = None,
    is_search: bool = False,
) -> Planned | Searched:
    """Plans a run on the slice `config.topology`. The data need not exist.

    config, overrides: see `initial.run_config`. price: the price of one chip for one hour.
    is_search: whether to search for the fastest mesh, micro-batch size and remat policy that fit.
    Raises UserError for an invalid value, or if a search finds nothing that fits.
    """
    if price is not None and price < 0:
        raise errors.UserError(f"--price={price:g}: must be 0 or more")
    resolved = initial.run_config(config, overrides)
    topology = hardware.parse_topology(resolved.topology)
    if is_search:
        candidates, num_fitting = search.run(resolved, topology)
        return Searched(tuple(candidates), num_fitting, price)
    return Planned(plan_lib.make(resolved, topology), price)
