"""A quick run of the family and the objective of `my_package`.

    PYTHONPATH=docs/extending/examples bertjax pretrain --workdir=run/ \\
        --config=docs/extending/examples/my_config.py --config.data.path=prepared/
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """Returns the config of a run of seconds on a CPU."""
    config = config_lib.smoke(config_lib.default("my_package.my_bert", "tiny"))
    config.objective.mask_rate = 0.4
    return config
