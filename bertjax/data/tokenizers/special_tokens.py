"""The special tokens around what a fine-tuned model reads; the tokenizer decides them.

    [CLS] A [SEP]    [CLS] A [SEP] B [SEP]    <s> A </s></s> B </s>    A    A <|endoftext|> B

The form is that of BERT, of RoBERTa and XLM-R, whose cls token is <s>, or of a tokenizer that has
neither a cls nor a sep token, as GPT-2's; rows of pretraining with two types of tokens have one
</s> between two texts all the same. The tokenizer that is exported with such a model puts them
there too (`Tokenizer.save`).
"""

from bertjax.data.batches import packing
from bertjax.data.tokenizers.tokenizer import Tokenizer
from bertjax.data.tokenizers.tokenizer_export import Ends, encoder_ends


def of_rows(tokenizer: Tokenizer) -> Ends:
    """Of one text or two. UserError for a tokenizer that has nothing to stand between two."""
    specials = tokenizer.specials
    roberta = specials.cls >= 0 and tokenizer.pieces([specials.cls]) == ["<s>"]
    found = encoder_ends(specials.cls, specials.sep, between=1 + roberta)
    return found if found.tail else found._replace(between=(packing.end_of_text(specials),))


def of_source(tokenizer: Tokenizer, separator: str) -> Ends:
    """Of the source that a decoder reads before it writes: <start> source SEPARATOR.

    The separator is text, or the end of text where the tokenizer has no token for it. UserError
    for a tokenizer with neither a token to begin a text with nor one to end it.
    """
    specials = tokenizer.specials
    separating = tuple(tokenizer.encode(separator)) or (packing.end_of_text(specials),)
    return Ends(head=(packing.start_of_text(specials),), tail=separating)
