"""The learning rates of a run as an argument of the update.

The update looks its rate up in a table. So runs that differ in peak rate, schedule or number of
steps share one compiled program, in a sweep or a suite as well.

    run_plans = Plans(config, strategy, mesh, num_steps, steps_per_epoch)
    state, report = run_plans.update(state, gradients, run_plans.of(3e-5))
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from bertjax import optimizer, sharding
from bertjax import step as step_lib
from bertjax.finetuning import recipe
from bertjax.finetuning.strategies import base

_SMALLEST = 4096  # rates in a table; a longer table has a power of two


@flax.struct.dataclass
class Plan:
    """The arguments of a step that depend on the run's rate and length.

    rates: float32[a power of two], the learning rate of each step; the last one is repeated.
    steps_per_epoch: int32.
    """

    rates: jax.Array
    steps_per_epoch: jax.Array


def _schedule(plan: Plan) -> optax.Schedule:
    """Returns the learning rate as a function of the number of updates so far."""
    return lambda count: jnp.take(plan.rates, count, mode="clip")


class Plans:
    """The plans and the optimizer of the runs of a config."""

    def __init__(
        self,
        config: ml_collections.ConfigDict,
        strategy: base.Strategy,
        mesh: jax.sharding.Mesh,
        num_steps: int,
        steps_per_epoch: int,
    ):
        self._config, self._strategy, self._mesh = config, strategy, mesh
        self._num_steps, self._steps_per_epoch = num_steps, steps_per_epoch
        self._by_rate: dict[float, Plan] = {}

    def of(self, learning_rate: float) -> Plan:
        """Returns the plan of the runs at a learning rate, on every device."""
        if learning_rate not in self._by_rate:
            with sharding.alone():
                plan = self._host_plan(learning_rate)
            self._by_rate[learning_rate] = sharding.replicate(self._mesh, plan)
        return self._by_rate[learning_rate]

    @property
    def tx(self) -> optax.GradientTransformation:
        """The optimizer, to initialize its state, which does not depend on the plan."""
        options = self._options(1.0)
        return self._strategy.optimizer(options, self._num_steps, self._steps_per_epoch)

    def update(
        self, state: step_lib.TrainState, gradients: step_lib.Gradients, plan: Plan
    ) -> tuple[step_lib.TrainState, dict[str, Any]]:
        """Updates a state with the learning rates of a plan; returns (state, report)."""
        options, rates = self._options(1.0), _schedule(plan)  # the rate of the options is not used
        tx = self._strategy.optimizer(options, self._num_steps, plan.steps_per_epoch, rates)
        return step_lib.make_update(tx, rates)(state, gradients)

    def _options(self, learning_rate: float) -> Any:
        return recipe.run_optimizer(self._config, learning_rate, self._num_steps)

    def _host_plan(self, learning_rate: float) -> Plan:
        size = max(_SMALLEST, 1 << self._num_steps.bit_length())
        steps = np.minimum(np.arange(size, dtype=np.int32), self._num_steps)
        rates = optimizer.make_schedule(self._options(learning_rate), self._num_steps)
        table = np.broadcast_to(np.asarray(jax.jit(rates)(steps), np.float32), steps.shape)
        return Plan(table.copy(), np.int32(self._steps_per_epoch))
