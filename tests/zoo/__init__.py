"""A zoo of folders as they are on the Hub: every family in every layout, made by transformers.

    texts         the texts to tokenize, and the corpus that small vocabularies are trained on
    vocabularies  vocab.txt, vocab.json + merges.txt, SentencePiece models, in the published forms
    species       the published models: sizes, special tokens, tokenizer_config.json
    layouts       how a folder is laid out: which files, which names, which keys
    table         species x layouts; which cells are refused, and where ids differ on purpose
    theirs        ids and outputs by transformers; runs under any version of it, without bertjax
    ours          the same by bertjax, and its export

A new layout is one function in `layouts`; a new published model is one entry in `species`.
"""
