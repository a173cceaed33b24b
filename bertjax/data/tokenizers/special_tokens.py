"""The special tokens around the inputs of a fine-tuned model, derived from its tokenizer.

    [CLS] A [SEP]    [CLS] A [SEP] B [SEP]    <s> A </s></s> B </s>    A    A <|endoftext|> B

The form is that of BERT; of RoBERTa and XLM-R, whose cls token is <s>; or of a tokenizer with
neither a cls nor a sep token, like GPT-2's. Pretraining rows with two token types nevertheless have
one </s> between two texts. The tokenizer that is exported with such a model adds the same tokens
(`Tokenizer.save`).
"""

from bertjax.data.batches import packing
from bertjax.data.tokenizers.tokenizer import Tokenizer
from bertjax.data.tokenizers.tokenizer_export import Ends, encoder_ends


def of_rows(tokenizer: Tokenizer) -> Ends:
    """Returns the special tokens around one text or two.

    Raises UserError if the tokenizer has no token to put between two texts.
    """
    specials = tokenizer.specials
    roberta = specials.cls >= 0 and tokenizer.pieces([specials.cls]) == ["<s>"]
    found = encoder_ends(specials.cls, specials.sep, between=1 + roberta)
    return found if found.tail else found._replace(between=(packing.end_of_text(specials),))


def of_source(tokenizer: Tokenizer, separator: str) -> Ends:
    """Returns the tokens around the source that a decoder reads: <start> source SEPARATOR.

    The separator is encoded as text; if it has no ids, the end of text is used. Raises UserError
    if the tokenizer has no start token, or if it needs the end of text and has none.
    """
    specials = tokenizer.specials
    separating = tuple(tokenizer.encode(separator)) or (packing.end_of_text(specials),)
    return Ends(head=(packing.start_of_text(specials),), tail=separating)
