"""LoRA (Hu et al., arXiv 2106.09685): adds alpha / rank * A B to a frozen kernel W.

A [in, rank] and B [rank, out] are stored under the path of their kernel, "query/kernel/lora_a", and
stacked over layers like that kernel. Kernels with a heads axis are treated as matrices [in, out].
B starts as zero, so the model starts as the pretrained one (section 4.1). `combine` adds the
product to W. So the model's code and the cost of its forward pass stay the same, and a fine-tuned
model has no extra parameters. The backward pass computes the gradient of W before those of A and B,
but only for target kernels.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.artifact import artifact
from bertjax.artifact import lora as lora_lib
from bertjax.finetuning.strategies import base

KERNELS = ("query", "key", "value", "out", "wi", "wi_gate", "wo")
RATES = (2e-4, 5e-4, 1e-3)


@dataclasses.dataclass(frozen=True)
class Config:
    """The rank, scale and targets.

    With the same number of parameters, query and value together are the best targets (section 7.1).
    """

    rank: int = 8  # columns of A, rows of B
    alpha: float = 16.0  # A B is scaled by alpha / rank
    targets: str = "query,value"  # kernels of the layers, separated by commas

    def __post_init__(self):
        errors.check(self.rank >= 1, "strategy.rank", self.rank, "1 or more")
        errors.check(self.alpha > 0, "strategy.alpha", self.alpha, "above 0")
        errors.check(
            set(self.names) <= set(KERNELS),
            "strategy.targets",
            self.targets,
            f"some of {', '.join(KERNELS)}, separated by commas",
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The target kernels, as a tuple."""
        return tuple(name.strip() for name in self.targets.split(","))


class Strategy(base.Strategy):
    """Trains two low-rank matrices for each target kernel, and the head."""

    name = "lora"

    def moves(self, path: str) -> bool:
        """Returns False: the parameters of the body are frozen."""
        return False

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """Returns (trained, frozen): all A, all B and the head; and the rest of the model.

        Raises UserError if the model's layers lack a target.
        """
        trained, frozen = super().split(params, key)
        flat = {
            path: kernel
            for path, kernel in sorted(artifact.flatten(frozen).items())
            if "/layers/" in path and path.endswith("/kernel")
        }
        kernels = {path.split("/")[-2] for path in flat}
        errors.check(
            kernels.issuperset(self.config.names),
            "strategy.targets",
            self.config.targets,
            f"some of the model's kernels, {', '.join(n for n in KERNELS if n in kernels)}",
        )
        targets = [path for path in flat if path.split("/")[-2] in self.config.names]
        matrices: dict[str, jax.Array] = {}
        for path, subkey in zip(targets, jax.random.split(key, len(targets)), strict=True):
            a, b = self._initial_matrices(path, flat[path], subkey)
            matrices |= {f"{path}/{lora_lib.A}": a, f"{path}/{lora_lib.B}": b}
        return artifact.unflatten({**artifact.flatten(trained), **matrices}), frozen

    def combine(self, trained: Any, frozen: Any) -> Any:
        """Returns the parameters with W + alpha / rank * A B in place of each target kernel W."""
        scale = self.config.alpha / self.config.rank
        flat_trained, flat = artifact.flatten(trained), artifact.flatten(frozen)
        for path in [path for path in flat_trained if path.endswith(f"/{lora_lib.A}")]:
            kernel = path.removesuffix(f"/{lora_lib.A}")
            product = flat_trained.pop(path) @ flat_trained.pop(f"{kernel}/{lora_lib.B}")
            flat[kernel] = flat[kernel] + scale * product.reshape(flat[kernel].shape)
        return artifact.unflatten({**flat, **flat_trained})

    def lora(self, trained: Any) -> lora_lib.Lora:
        """Returns the trained matrices, and the names of the heads that were trained with them."""
        flat = artifact.flatten(trained)
        ends = lora_lib.A, lora_lib.B
        matrices = {path: x for path, x in flat.items() if path.rpartition("/")[2] in ends}
        heads = sorted({path.split("/")[0] for path in flat.keys() - matrices.keys()})
        return lora_lib.Lora(self.config.rank, self.config.alpha, tuple(heads), matrices)

    def _initial_matrices(
        self, path: str, kernel: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        # A is drawn as in the authors' code: uniform in +-1 / sqrt(in).
        num_in_axes = 2 if sharding.param_axes(path)[1:3] == ("heads", "head_dim") else 1
        num_layers, rank = len(kernel), self.config.rank
        width = math.prod(kernel.shape[1 : 1 + num_in_axes])
        shape = (num_layers, width, rank)
        a = jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) / width**0.5
        return a, jnp.zeros((num_layers, rank, math.prod(kernel.shape[1 + num_in_axes :])))
