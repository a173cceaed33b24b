"""GLUE (Wang et al., arXiv 1804.07461): nine tasks, five seeds, three learning rates.

    bertjax finetune --suite=configs/suites/glue.py --model=run/ --data=glue/ --output=out/

--data: the folder of the GLUE archive, with CoLA/, SST-2/, MRPC/, STS-B/, QQP/, MNLI/, QNLI/, RTE/
and WNLI/; tasks without files are skipped. `:smoke` uses one seed, one rate, one epoch and 64
examples of each task; the full suite has 135 runs.
"""

from bertjax import errors
from bertjax.finetuning import suite

SMOKE = {
    "seeds": 1,
    "learning_rates": "1e-4",
    "num_epochs": 1,
    "data.max_train": 64,
}
TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")

# Test server: Matthews' correlation for CoLA, F1 for MRPC and QQP, Spearman's for STS-B.
PUBLISHED = (
    suite.Published(
        "BERT-base",
        "Devlin et al., arXiv 1810.04805, table 1 (test server)",
        {
            "cola": {"test": 52.1},
            "sst2": {"test": 93.5},
            "mrpc": {"test": 88.9},
            "stsb": {"test": 85.8},
            "qqp": {"test": 71.2},
            "mnli": {"test": 84.6, "test_mismatched": 83.4},
            "qnli": {"test": 90.5},
            "rte": {"test": 66.4},
        },
    ),
    suite.Published(
        "BERT-tiny",
        "google-research/bert, README of 11 March 2020 (test server)",
        {
            "cola": {"test": 0.0},
            "sst2": {"test": 83.2},
            "mrpc": {"test": 81.1},
            "stsb": {"test": 73.6},
            "qqp": {"test": 62.2},
            "mnli": {"test": 70.2, "test_mismatched": 70.3},
            "qnli": {"test": 81.5},
            "rte": {"test": 57.2},
            "wnli": {"test": 62.3},
        },
    ),
)


def get_suite(arg: str = "") -> suite.Suite:
    """The suite; "smoke" shrinks it to minutes on a CPU."""
    if arg not in ("", "smoke"):
        raise errors.UserError(f"the argument of the suite must be smoke or absent, not {arg!r}")
    values = SMOKE if arg == "smoke" else {"seeds": 5}
    return suite.Suite(
        "GLUE",
        [suite.Item(task, values) for task in TASKS],
        PUBLISHED,
        "Published numbers are from the test server, whose labels are not public; dev is the "
        "closest split that can be scored here.",
    )
