"""A task of the type `several_numbers`: valence and arousal of a text.

Its lines in `TASKS` of `bertjax/finetuning/tasks.py` are those of `TASK` here.
"""

from bertjax.finetuning.examples import columns, sentences
from bertjax.finetuning.task import Task

TASK = Task(
    "emotions",  # as in --task=emotions
    "several_numbers",  # the file of the task type
    "sentences",  # the type of the examples: texts and a label
    columns.Columns(sentences.TEXT, ("scores",)),  # names of the columns
    ("pearson", "spearman"),  # the scores that are reported; the first one selects the best model
    number_lists=True,  # a label is a list of numbers, in TSV 0.9,0.1
    text_form=False,
)
