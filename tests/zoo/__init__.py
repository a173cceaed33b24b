"""A zoo of folders as they lie on the Hub: every family in every layout, made by transformers.

    texts         what is tokenized, and the text that small vocabularies are trained on
    vocabularies  vocab.txt, vocab.json + merges.txt, SentencePiece models, in the published forms
    species       the published models: sizes, special tokens, tokenizer_config.json
    layouts       how a folder is laid out: which files, which names, which keys
    theirs        ids and outputs by transformers; runs under any version of it, without bertjax
    ours          the same by bertjax, and its export

A layout that is new is one function in `layouts`; a published model is one entry in `species`.
"""
