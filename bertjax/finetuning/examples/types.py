"""The types of examples that labelled files hold: one file for each, named as in `Task.reader`.

    types.TYPES["sentences"] is types.Sentence

`base.Example` describes what a type defines.
"""

from bertjax.finetuning.examples import base, choices, questions, sentences, text_pairs, words

Example = base.Example
Sentence = sentences.Sentence
Words = words.Words
Question = questions.Question
TextPair = text_pairs.TextPair
Choice = choices.Choice

TYPES: dict[str, type[Example]] = {
    kind.__module__.rpartition(".")[2]: kind
    for kind in (Sentence, Words, Question, TextPair, Choice)
}
