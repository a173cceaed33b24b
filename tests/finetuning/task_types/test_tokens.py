"""Tags of words: pieces and back, sentences that are too long, entities as seqeval counts them."""

import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import errors
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import batching, rows
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import tokens
from tests.helpers import task_types, tiny_model
from tests.helpers.task_types import bind

Config = tokens.Config
Words = examples_lib.Words
SENTENCES = (
    Words(("the", "cat", "sat", "on", "the", "mats"), ("B-X", "I-X", "O", "O", "B-Y", "I-Y")),
    Words(("a", "dog", "sawdog"), ("O", "B-X", "B-X")),
    Words(("letters",), ("O",)),
)
LABELS = ["O", "B-X", "I-X", "B-Y", "I-Y"]
FORMS = ["wordpiece", "bpe", "unigram"]


def _encode(config, examples, form="wordpiece", length=40):
    return bind(
        tokens, config, LABELS, tokenizer=tiny_model.tokenizer(form), lengths=rows.Lengths(length)
    ).encode(examples)


def _told(encoded):
    """Outputs that are the targets."""
    tags = np.zeros((len(encoded.rows), max(len(r["targets"]) for r in encoded.rows)), np.int32)
    for number, row in enumerate(encoded.rows):
        tags[number, : len(row["targets"])] = row["targets"]
    return {"tags": tags, "probabilities": np.full(tags.shape, 0.75, np.float32)}


def _decode(config, examples, encoded, outputs, labels=LABELS):
    return bind(tokens, config, labels, tokenizer=tiny_model.tokenizer()).decode(
        examples, encoded, outputs
    )


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_words_are_those_of_the_text(form):
    """A word that follows another one has the space that the tokenizer gives it."""
    tokenizer = tiny_model.tokenizer(form)
    encoded = _encode(Config(), SENTENCES, form)
    for row, sentence in zip(encoded.rows, SENTENCES, strict=True):
        (ids,) = tokenizer.encode_batch([" ".join(sentence.words)])
        inner = row["input_ids"].tolist()
        if tokenizer.specials.cls >= 0:
            assert inner.pop(0) == tokenizer.specials.cls
            assert inner.pop() == tokenizer.specials.sep
        assert inner == ids


def test_label_stands_on_the_first_piece_or_on_all():
    pieces = tiny_model.tokenizer().encode_batch(SENTENCES[1].words)
    assert [len(ids) for ids in pieces] == [1, 2, 5]
    first, every = (_encode(Config(n), SENTENCES[1:2]).rows[0] for n in ("first", "all"))
    assert np.flatnonzero(first["loss_weights"]).tolist() == [1, 2, 4]
    assert first["targets"][[1, 2, 4]].tolist() == [0, 1, 1]
    assert np.flatnonzero(every["loss_weights"]).tolist() == list(range(1, 9))
    assert every["targets"][1:9].tolist() == [0, 1, 2, 1, 2, 2, 2, 2], "an entity begins once"
    for row in (first, every):
        assert np.flatnonzero(row["words"]).tolist() == [1, 2, 4]
        assert row["words"][[1, 2, 4]].tolist() == [1, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_windows_tell_every_word_once(seed):
    rng = np.random.default_rng(seed)
    room = int(rng.integers(1, 12))
    overlap = int(rng.integers(0, 12))
    sizes = rng.integers(1, min(room, 5) + 1, rng.integers(0, 40)).tolist()
    found = list(tokens.windows(sizes, room, overlap))
    told = [word for window in found for word in range(window.first, window.last)]
    assert told == list(range(len(sizes)))
    for window in found:
        assert window.start <= window.first <= window.last <= window.stop
        assert sum(sizes[window.start : window.stop]) <= room
    for a, b in itertools.pairwise(found):
        shared = sizes[b.start : a.stop]
        assert sum(shared) <= min(overlap, room // 2) and a.start < b.start and a.stop < b.stop
        left, right = a.last - b.start, a.stop - b.first
        assert a.last == b.first and abs(left - right) <= 1, "half of what they share each"
    assert (len(found) == 1) == (sum(sizes) <= room)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [9, 16, 40])
def test_targets_come_back_as_tags_at_any_length(form, length):
    example = Words(*(tuple(part * 5) for part in SENTENCES[0][:2]))
    examples = [SENTENCES[1], example, SENTENCES[2]]
    config = Config(overlap=6)
    encoded = _encode(config, examples, form, length)
    assert len(encoded.rows) > 3 or length == 40
    assert max(len(row["input_ids"]) for row in encoded.rows) <= length
    assert not encoded.truncated.any(), "windows cut nothing"
    assert sum(np.count_nonzero(row["words"]) for row in encoded.rows) == 3 + 30 + 1
    found = _decode(config, examples, encoded, _told(encoded))
    assert [tuple(p["tags"]) for p in found] == [e.tags for e in examples]
    assert {p for prediction in found for p in prediction["probabilities"]} == {0.75}


def test_truncated_words_are_outside():
    example = Words(*(tuple(part * 5) for part in SENTENCES[0][:2]))
    config = Config(long_sentences="truncate")
    encoded = _encode(config, [SENTENCES[2], example], length=12)
    assert len(encoded.rows) == 2 and encoded.truncated.tolist() == [False, True]
    kept = np.count_nonzero(encoded.rows[1]["words"])
    assert 5 < kept < 11
    _, found = _decode(config, [SENTENCES[2], example], encoded, _told(encoded))
    assert tuple(found["tags"]) == (*example.tags[:kept], *["O"] * (30 - kept))
    assert found["probabilities"][kept:] == [0.0] * (30 - kept)
    _, found = _decode(config, [SENTENCES[2], example], encoded, _told(encoded), ["N", *LABELS[1:]])
    assert set(found["tags"][kept:]) == {""}, "no tag that could be right"


def test_word_without_a_piece_and_word_beyond_a_row_have_their_tag():
    tokenizer = tiny_model.tokenizer()
    example = Words(("the", "\u00ad", "letters" * 20, "cat"), ("B-X", "I-X", "B-Y", "I-Y"))
    for encoding in ("text", "words"):
        config = Config(encoding=encoding)
        encoded = _encode(config, [example], length=10)
        unknown = encoded.rows[0]["input_ids"].tolist().count(tokenizer.specials.unk)
        assert unknown == {"text": 1, "words": 2}[encoding], "the long word, and the empty one"
        assert max(len(row["input_ids"]) for row in encoded.rows) <= 10
        (found,) = _decode(config, [example], encoded, _told(encoded))
        assert tuple(found["tags"]) == example.tags and found["probabilities"] == [0.75] * 4
    with pytest.raises(errors.UserError, match=r"config.max_length = 2 leaves no room for a word"):
        _encode(Config(), [example], length=2)


def test_ten_thousand_words_are_all_told():
    example = Words(("cat", "dog") * 5000, ("B-X", "B-Y") * 5000)
    encoded = _encode(Config(), [example], length=40)
    (found,) = _decode(Config(), [example], encoded, _told(encoded))
    assert tuple(found["tags"]) == example.tags


# --- labels --------------------------------------------------------------------------------------


def test_labels_are_outside_first_and_both_of_a_type():
    examples = [Words(("a", "b", "c"), ("B-Y", "O", "B-X")), Words(("a",), None)]
    assert bind(tokens, Config()).label_names(examples) == LABELS, "dev may have what train has not"
    assert bind(tokens, Config(), LABELS).num_labels() == 5
    parts = [Words(("a", "b"), ("VERB", "ADJ"))]
    assert bind(tokens, Config()).label_names(parts) == ["ADJ", "VERB"]


def test_unknown_tag_is_named_with_its_place():
    example = Words(("a", "cat"), ("O", "B-Z"), "dev.conll:7")
    with pytest.raises(errors.UserError) as raised:
        bind(tokens, Config(), LABELS, task="dev.conll").check([*SENTENCES, example])
    assert str(raised.value) == (
        "dev.conll:7: tag 'B-Z' of 'cat' is not one of the labels of the training data "
        "(O, B-X, I-X, B-Y, I-Y); "
        "correct it, or add examples of it to the training data"
    )
    bind(tokens, Config(), LABELS, task="dev.conll").check(
        [*SENTENCES, example._replace(tags=None)]
    )


def test_config_names_its_key():
    with pytest.raises(errors.UserError, match=r"config.kind.label_pieces = 'last': must be first"):
        Config(label_pieces="last")
    with pytest.raises(errors.UserError, match=r"config.kind.overlap = -1"):
        Config(overlap=-1)


# --- entities ------------------------------------------------------------------------------------


def _random_tags(rng, count):
    return [
        [LABELS[i] for i in rng.integers(0, len(LABELS), rng.integers(1, 12))] for _ in range(count)
    ]


def test_spans_are_those_of_seqeval():
    labelling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    for tags in _random_tags(np.random.default_rng(0), 300):
        found = [(span.type, span.start, span.stop - 1) for span in tokens.spans(tags)]
        assert found == labelling.get_entities(tags), tags


def test_repair_begins_entities_and_changes_none():
    tags = ["I-X", "I-X", "I-Y", "O", "I-X", "B-X", "I-X"]
    wanted = ["B-X", "I-X", "B-Y", "O", "B-X", "B-X", "I-X"]
    assert tokens.repaired(tags) == wanted
    assert tokens.spans(wanted) == tokens.spans(tags)
    example = Words(("a",) * 7)
    for config, expected in ((Config(), tags), (Config(repair=True), wanted)):
        encoded = _encode(config, [example])
        outputs = _told(encoded)
        outputs["tags"][0, 1:8] = [LABELS.index(tag) for tag in tags]
        (found,) = _decode(config, [example], encoded, outputs)
        assert found["tags"] == expected


def test_repair_leaves_tags_that_mark_no_entities():
    example, labels = Words(("a",) * 3), ["DET", "NOUN", "VERB"]
    encoded = _encode(Config(), [example])
    outputs = _told(encoded)
    outputs["tags"][0, 1:4] = [0, 1, 2]
    (found,) = _decode(Config(repair=True), [example], encoded, outputs, labels)
    assert found["tags"] == labels and found["entities"] == []


def test_entities_are_told_as_words():
    encoded = _encode(Config(), SENTENCES)
    found = _decode(Config(), SENTENCES, encoded, _told(encoded))
    assert found[0]["entities"] == [
        {"type": "X", "text": "the cat", "start": 0, "stop": 2},
        {"type": "Y", "text": "the mats", "start": 4, "stop": 6},
    ]
    assert found[2]["entities"] == []
    json.dumps(found)


def test_scores_are_those_of_seqevals_readme():
    pytest.importorskip("seqeval")
    labels = ["O", "B-MISC", "I-MISC", "B-PER", "I-PER"]
    tags = ("O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"), ("B-PER", "I-PER", "O")
    said = ["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]
    examples = [Words(("w",) * len(own), own) for own in tags]
    found = bind(tokens, Config(), labels).scores(examples, [{"tags": own} for own in said])
    assert found["f1"] == 50 and found["accuracy"] == pytest.approx(80)
    assert found["f1/PER"] == 100 and found["f1/MISC"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_seqeval(seed):
    seqeval = pytest.importorskip("seqeval.metrics")
    rng = np.random.default_rng(seed)
    targets = _random_tags(rng, 40)
    said = [
        [tag if rng.random() < 0.7 else LABELS[rng.integers(5)] for tag in tags] for tags in targets
    ]
    examples = [Words(("w",) * len(tags), tuple(tags)) for tags in targets]
    unknown, silent = Words(("w",)), {"tags": ["B-X"]}
    predictions = [{"tags": tags} for tags in said]
    found = bind(tokens, Config(), LABELS).scores([*examples, unknown], [*predictions, silent])
    for name in ("f1", "precision", "recall", "accuracy"):
        expected = 100 * getattr(seqeval, f"{name}_score")(targets, said)
        assert found[name] == pytest.approx(expected), name
    report = seqeval.classification_report(targets, said, output_dict=True)
    assert found["recall/Y"] == pytest.approx(100 * report["Y"]["recall"])
    assert found["precision/X"] == pytest.approx(100 * report["X"]["precision"])


def test_nothing_found_scores_zero_and_other_tags_have_an_accuracy():
    pytest.importorskip("seqeval")
    silent = [{"tags": ["O"] * len(e.words)} for e in SENTENCES]
    found = bind(tokens, Config(), LABELS).scores(SENTENCES, silent)
    assert found["f1"] == found["recall/X"] == 0 and found["accuracy"] == 40
    found = bind(tokens, Config(), LABELS).scores(SENTENCES[2:], silent[2:])
    assert found == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 100.0}
    parts = [Words(("a", "b"), ("DET", "NOUN"))]
    found = bind(tokens, Config(), ["DET", "NOUN", "VERB"]).scores(
        parts, [{"tags": ["DET", "VERB"]}]
    )
    assert found == {"accuracy": 50.0}


def test_text_is_cut_into_words():
    text = "Ms Br\u00fchl's U.N. flat, 3rd floor"
    assert examples_lib.Words.cut(text).words == (
        "Ms", "Br\u00fchl", "'", "s", "U", ".", "N", ".", "flat", ",", "3rd", "floor",
    )  # fmt: skip
    places = examples_lib.Words.cut(text).places()
    assert text[places[1][0] : places[3][1]] == "Br\u00fchl's"


# --- training ------------------------------------------------------------------------------------


def test_loss_counts_each_word_once():
    examples = [*SENTENCES, Words(("the", "dog"))]
    encoded, size = _encode(Config(), examples), len(examples) + 1
    ((_, batch),) = batching.Batches(
        encoded.rows, bind(tokens, Config()).features(), rows.Lengths(40), size
    ).in_order()
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((*batch["input_ids"].shape, 5)).astype(np.float32)
    found = bind(tokens, Config()).loss(lambda **_: {"token_logits": jnp.asarray(logits)}, batch)
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(
        logits, batch["targets"][..., None], -1
    )[..., 0]  # fmt: skip
    first = (batch["words"] > 0) & (batch["loss_weights"] > 0)
    first &= batch["example_weights"][:, None] > 0
    loss, weight = found["token_loss"]
    assert weight == bind(tokens, Config()).normalizers(batch)["token_loss"] == 10
    assert loss == pytest.approx(nll[first].sum(), rel=1e-5)
    assert first.sum() == 10, "those of the sentence without tags and of the filling row are none"


@pytest.mark.proof
def test_a_model_learns_the_tags():
    config = Config(overlap=2)
    encoded = _encode(config, SENTENCES, length=8)
    assert len(encoded.rows) > len(SENTENCES)
    model, params = task_types.make(tokens, config, LABELS)
    batch = task_types.batch_of(tokens, config, encoded)
    params, losses = task_types.fit(tokens, config, model, params, batch)
    assert losses[-1] < 0.1 < losses[0]
    outputs = task_types.outputs_of(tokens, config, model, params, batch)
    found = _decode(config, SENTENCES, encoded, outputs)
    assert [tuple(p["tags"]) for p in found] == [e.tags for e in SENTENCES]
    assert min(found[0]["probabilities"]) > 0.5


@pytest.mark.parametrize("length", [16, 128])
def test_real_sentences_come_back(shared_data, length):
    pytest.importorskip("seqeval")
    examples = examples_lib.Words.of_conll(str(shared_data / "ner/wnut17/dev.conll"), entities=True)
    tokenizer = tokenizer_lib.load(str(shared_data / "vocab/bert-base-uncased-vocab.txt"))
    labels = bind(tokens, Config()).label_names(examples)
    assert len(labels) == 13
    encoded = bind(
        tokens, Config(), labels, tokenizer=tokenizer, lengths=rows.Lengths(length)
    ).encode(examples)
    found = bind(tokens, Config(), labels, tokenizer=tokenizer).decode(
        examples, encoded, _told(encoded)
    )
    scores = bind(tokens, Config(), labels).scores(examples, found)
    assert scores["f1"] == scores["accuracy"] == 100
    entities = [entity for prediction in found for entity in prediction["entities"]]
    assert len(entities) == 836, "of data/README.md"
