"""Configs of benchmarks/modern_recipe.py: a ModernBERT mini, trained as ModernBERT and mmBERT are.

    bertjax pretrain --config=benchmarks/modern_recipe_config.py:recipe,1000 --workdir=run/

The argument is a name, the number of steps and, for some names, more values:

    recipe,STEPS                    three phases, see `recipe`
    extension,STEPS,LENGTH,THETA    the first two phases, the second one in rows of another length
    stable,STEPS                    one phase at a constant rate, on one dataset
    decay,STEPS,MASK_RATE           the same, with a decay in its last fifth

The first two read the sources in prepared/NAME (--config.data.sources.NAME.path=FOLDER for each of
SOURCES), the other two need --config.data.path=FOLDER. The tokenizer of the data must have at most
8,192 pieces. STEPS must be a multiple of 20.
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib

ENGLISH = ("novels", "textbooks", "speeches")
SOURCES = (*ENGLISH, "german", "french")
TOKENS = 2048  # of each step, in rows of any length
THETA = 160_000.0  # of the global layers, in long rows


def get_config(arg: str = "") -> ConfigDict:
    """Returns the config for one of the arguments listed above; by default `recipe,1000`."""
    name, *values = (arg or "recipe,1000").split(",")
    makers = {"recipe": recipe, "extension": extension, "stable": stable, "decay": decay}
    config = makers[name](*values)
    config.phase2.num_steps = 0  # see config.phases
    return config


def base(num_steps: int) -> ConfigDict:
    """Returns what all runs share; the rate is constant."""
    config = config_lib.default("modernbert", "mini", "mlm")

    # Model
    config.model.num_layers = 4
    config.model.hidden_size = 128
    config.model.num_heads = 4
    config.model.intermediate_size = 192
    config.model.vocab_size = 8192
    config.model.max_length = 1024
    config.model.global_every = 3
    config.model.local_window = 32
    config.model.global_theta = 10_000.0  # in short rows
    config.model.local_theta = 10_000.0

    # Data and steps
    config.data.length = 128
    config.batch_size = TOKENS // 128
    config.num_steps = num_steps

    # Objective
    config.objective.mask_rate = 0.3
    config.objective.masking = "token"
    config.objective.mask_token_rate = 0.8
    config.objective.random_token_rate = 0.1
    config.objective.pair = "none"
    config.objective.cross_documents = False
    config.objective.packing = True
    config.objective.short_rate = 0.0

    # Optimizer
    config.optimizer.name = "stable_adamw"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.schedule = "constant"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = num_steps // 10
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.01
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 0.0
    config.ema_decay = 1 - 10 / num_steps  # covers a tenth of the steps

    # Log, evaluation and checkpoints
    config.log_every = 10
    config.eval.every = num_steps
    config.eval.max_samples = 500
    config.checkpoint.every = num_steps // 20
    config.checkpoint.keep_every = num_steps // 20

    config.topology = "v5e-1"
    return config


def recipe(steps: str) -> ConfigDict:
    """Returns the whole recipe: its phases have 60%, 20% and 20% of the steps.

    1. Rows of 128 tokens, English, 30% of the tokens are masked.
    2. Rows of 512 tokens with a larger RoPE theta, German is added, 15% are masked.
    3. The decay by 1 - sqrt. French is added, small sources are read more often, 5% are masked.
    """
    num_steps = int(steps)
    last = num_steps // 5
    config = extension(steps, "512", str(THETA))
    config.num_steps = num_steps
    config.phases = (
        *config.phases,
        {
            "num_steps": last,
            "data.sources.french.weight": 1.0,
            "data.size_exponent": 0.3,
            "objective.mask_rate": 0.05,
            "optimizer.schedule": "wsd",
            "optimizer.decay_steps": last,
            "optimizer.decay_shape": "one_minus_sqrt",
        },
    )
    config.eval.every = num_steps // 10
    return config


def extension(steps: str, length: str, theta: str) -> ConfigDict:
    """Returns the first two phases of the recipe, the second one with this length and theta."""
    num_steps = int(steps)
    config = base(num_steps)
    config.data.sources = {
        name: {"path": f"prepared/{name}", "weight": float(name in ENGLISH)} for name in SOURCES
    }
    config.data.size_exponent = 0.7
    first, second = num_steps * 3 // 5, num_steps // 5
    config.phases = (
        {"num_steps": first},
        {
            "num_steps": second,
            "data.length": int(length),
            "batch_size": TOKENS // int(length),
            "model.global_theta": float(theta),
            "data.sources.german.weight": 1.0,
            "data.size_exponent": 0.5,
            "objective.mask_rate": 0.15,
        },
    )
    config.num_steps = first + second
    config.eval.max_samples = 32  # of each source
    return config


def stable(steps: str) -> ConfigDict:
    """Returns a run at a constant rate."""
    return base(int(steps))


def decay(steps: str, mask_rate: str) -> ConfigDict:
    """Returns `stable` with a last fifth in which the rate falls and the mask rate may differ."""
    config = base(int(steps))
    last = config.num_steps // 5
    config.phases = (
        {"num_steps": config.num_steps - last},
        {
            "num_steps": last,
            "objective.mask_rate": float(mask_rate),
            "optimizer.schedule": "wsd",
            "optimizer.decay_steps": last,
            "optimizer.decay_shape": "one_minus_sqrt",
        },
    )
    return config
