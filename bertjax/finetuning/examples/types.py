"""The types of labelled examples; each has its own file, which `Task.reader` names.

    types.TYPES["sentences"] is types.Sentence

`base.Example` is the protocol that they implement.
"""

from bertjax.finetuning.examples import (
    base,
    candidates,
    choices,
    mixed,
    questions,
    sentences,
    text_pairs,
    words,
)

Example = base.Example
Sentence = sentences.Sentence
Words = words.Words
Question = questions.Question
TextPair = text_pairs.TextPair
Choice = choices.Choice
Candidates = candidates.Candidates
Mixed = mixed.Mixed

TYPES: dict[str, type[Example]] = {
    kind.__module__.rpartition(".")[2]: kind
    for kind in (Sentence, Words, Question, TextPair, Choice, Candidates, Mixed)
}
