"""Texts for texts: rows, losses, what is written or chosen, and its scores."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertjax import errors, plugins
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import batching, rows, text_rows
from bertjax.finetuning.examples.types import Choice, Question, Sentence, TextPair, Words
from bertjax.finetuning.task_types import text_to_text
from bertjax.inference import generation, pretrained, scoring
from tests.helpers import encoders, scored, task_types
from tests.helpers.task_types import bind

LENGTHS = rows.Lengths(40, 16)
CONFIG = text_to_text.Config(max_target_length=16)
PAIRS = [
    TextPair("the cat sat", ("a dog",)),
    TextPair("a dog ran home and saw", ("the cat", "letters")),
    TextPair("the mat", ("",)),
    TextPair("many words", ("sat on the mat",)),
]
MODELS = {"encoder": ("t5", "unigram"), "causal": ("gpt2", "bpe"), "prefix": ("gpt2", "bpe")}


def made(reader):
    """(model, config) of a reader."""
    model = scored.make(*MODELS[reader])
    if reader == "prefix":
        model = scored.trained_by(model, name="prefix_lm")
    config = of(CONFIG).for_model(model.source).config
    assert config.reader == reader
    return model, config


def of(config, labels=(), **fields):
    return bind(text_to_text, config, labels, **fields)


def encode(model, config, examples, labels=(), lengths=LENGTHS):
    bound = of(config, labels, tokenizer=model.tokenizer, lengths=lengths)
    return bound.encode(examples)


def answers(model, config, examples, labels=()):
    """Predictions from start to end."""
    bound = of(config, labels, tokenizer=model.tokenizer, lengths=LENGTHS)
    encoded = bound.encode(examples)
    return bound.decode(examples, encoded, bound.predict_loop(model, encoded))


def batch_of(config, encoded):
    """All rows in one batch."""
    rows = encoded.rows
    table = batching.Batches(rows, of(config).features(), LENGTHS, len(rows))
    ((numbers, batch),) = table.in_order()
    return {name: array[np.argsort(numbers)] for name, array in batch.items()}


def terms(model, config, batch):
    found = _loss(config, model.model, model.params, batch)
    weight = of(config).normalizers(batch)["lm_loss"]
    assert float(weight) == float(found["lm_loss"][1])
    return {name: tuple(map(float, term)) for name, term in found.items()}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _loss(config, model, params, batch):
    return of(config).loss(functools.partial(model.apply, {"params": params}), batch)


class Digits:
    """A tokenizer whose text is its ids; 0 pads, 1 ends, 2 starts."""

    specials = tokenizer_lib.Specials(pad=0, unk=-1, cls=-1, sep=-1, mask=-1, bos=2, eos=1)

    def encode(self, text):
        return [int(word) for word in text.split()]

    def encode_batch(self, texts):
        return list(map(self.encode, texts))


def test_rows_of_an_encoder_decoder_are_those_of_seqio():
    form = text_rows.Form(Digits(), "encoder", "7", 7)
    (target,) = form.targets(["3 9 4"])
    row = form.row(form.prompt([9, 4, 3, 8]), target)
    assert {name: array.tolist() for name, array in row.items()} == {
        "input_ids": [9, 4, 3, 8, 1],
        "attention_mask": [1, 1, 1, 1, 1],
        "decoder_input_ids": [0, 3, 9, 4],
        "targets": [3, 9, 4, 1],
        "loss_weights": [1, 1, 1, 1],
    }
    other = text_rows.Form(Digits(), "encoder", "7", 7, decoder_start_id=5)
    row = other.row(other.prompt([9, 4, 3, 8]), target)
    assert row["decoder_input_ids"].tolist() == [5, 3, 9, 4]


def test_the_model_decides_what_its_decoder_reads_first():
    source = encoders.make_artifact("t5", "unigram")
    assert of(CONFIG).for_model(source).config.decoder_start_id == -1
    fields = source.fields | {"decoder_start_id": 5}
    other = of(CONFIG).for_model(dataclasses.replace(source, fields=fields)).config
    assert other.decoder_start_id == 5


@pytest.mark.parametrize(("separator", "between"), [("7 8", [7, 8]), ("\n", [1]), ("", [1])])
@pytest.mark.parametrize("reader", ["causal", "prefix"])
def test_rows_of_a_decoder(reader, separator, between):
    form = text_rows.Form(Digits(), reader, separator, 7)
    (target,) = form.targets(["3 9"])
    prompt = form.prompt([9, 4, 6])
    row = form.row(prompt, target)
    known = [2, 9, 4, 6, *between]
    assert row["input_ids"].tolist() == [*known, 3, 9]
    assert row["targets"].tolist() == [*known[1:], 3, 9, 1]
    assert row["loss_weights"].tolist() == [0] * (len(known) - 1) + [1, 1, 1]
    if reader == "prefix":
        assert row["prefix_mask"].tolist() == [1] * len(known) + [0, 0]
    for target in (*form.targets(["3 9", ""]), None):
        one = form.row(prompt, target)
        assert form.prompt_of(one).tolist() == known
        assert one["loss_weights"].sum() == (0 if target is None else len(target))
        assert len({len(array) for array in one.values()}) == 1


def test_what_is_cut_is_told():
    form = text_rows.Form(Digits(), "encoder", "", 4)
    assert form.row(form.prompt([5]), form.targets(["3 4 5 6"])[0])["targets"].tolist() == [
        3, 4, 5, 1,
    ]  # fmt: skip
    model, config = made("causal")
    config = dataclasses.replace(config, max_target_length=4)
    texts = [("cat", "dog"), ("the cat sat on the mat " * 5, "a"), ("a", "the cat sat on the mat")]
    pairs = [TextPair(source, (target,)) for source, target in texts]
    encoded = encode(model, config, pairs, lengths=rows.Lengths(16, 4))
    assert encoded.truncated.tolist() == [False, True, True]
    assert max(len(row["input_ids"]) for row in encoded.rows) <= 16
    whole = encode(model, config, pairs[1:2], lengths=rows.Lengths(200, 4)).rows[0]
    assert encoded.rows[1]["input_ids"][-1] == whole["input_ids"][-1]  # the target, not cut
    with pytest.raises(errors.UserError, match=r"max_length = 6 .*kind\.max_target_length"):
        encode(model, config, pairs, lengths=rows.Lengths(6, 4))


def test_the_model_decides_the_reader():
    t5, gpt2 = scored.make("t5", "unigram").source, scored.make("gpt2", "bpe").source
    causal = dataclasses.replace(CONFIG, reader="causal")
    assert of(CONFIG).for_model(t5).config.reader == "encoder"
    with pytest.raises(errors.UserError, match=r"reader = 'causal': must be 'encoder', because"):
        of(causal).for_model(t5)
    prefix = dataclasses.replace(gpt2, objective={"name": "prefix_lm"})
    assert of(causal).for_model(prefix).config.reader == "causal"
    assert of(CONFIG).for_model(gpt2).config.reader == "causal"
    task = {"kind": "text_to_text", "config": {"reader": "prefix"}}
    assert of(CONFIG).for_model(dataclasses.replace(gpt2, task=task)).config.reader == "prefix"


def test_bad_configs_and_labels():
    with pytest.raises(errors.UserError, match=r"kind\.answer = 'guess'"):
        text_to_text.Config(answer="guess")
    with pytest.raises(errors.UserError, match="num_beams = 0"):
        text_to_text.Config(num_beams=0)
    seen = [Sentence(("a",), "yes"), Sentence(("b",), "no")]
    labels = of(CONFIG).label_names(seen)
    assert labels == ["no", "yes"]
    of(CONFIG, labels, task="task").check([*seen, Sentence(("c",))])
    with pytest.raises(errors.UserError, match=r"^dev\.tsv:9: label 'maybe' .* \(no, yes\)"):
        bad = Sentence(("b",), "maybe", where="dev.tsv:9")
        of(CONFIG, labels, task="task").check([bad])
    chooses = dataclasses.replace(CONFIG, answer="choose")
    assert of(CONFIG).label_names(PAIRS) == []
    assert of(chooses).label_names(PAIRS[:2]) == ["a dog", "the cat"]
    with pytest.raises(errors.UserError, match="needs at least two labels, but their number is 0"):
        of(chooses, task="squad").check([Question("q", "Who?", "Ada.")])


# Losses


@pytest.mark.parametrize("reader", MODELS)
def test_the_loss_is_that_of_the_targets_alone(reader):
    model, config = made(reader)
    encoded = encode(model, config, PAIRS)
    if reader == "encoder":
        wanted = -scoring.log_likelihood_of_continuations(
            model, [p.source for p in PAIRS], [p.targets[0] for p in PAIRS]
        ).sums
    else:
        wanted = [-sum(_steps(model, config, row)) for row in encoded.rows]
    batch = batch_of(config, encoded)
    found = terms(model, config, batch)
    assert found["lm_loss"][0] == pytest.approx(sum(wanted), rel=1e-4)
    assert found["lm_loss"][1] == sum(len(model.tokenizer.encode(p.targets[0])) + 1 for p in PAIRS)
    batch["example_weights"][1:] = 0
    assert terms(model, config, batch)["lm_loss"][0] == pytest.approx(wanted[0], rel=1e-4)
    bare = encode(model, config, [TextPair(p.source) for p in PAIRS])
    batch = batch_of(config, bare)
    assert terms(model, config, batch)["lm_loss"] == (0, 0)


def _steps(model, config, row):
    """Log probabilities of a target's tokens, by a decoder that reads one row without padding."""
    names = ("input_ids", "prefix_mask")
    features = {name: row[name][None] for name in names if name in row}
    logits = scored.apply(model, "logits", **features)[0]
    steps = scored.log_softmax(logits)[np.arange(len(logits)), row["targets"]]
    return steps[row["loss_weights"] > 0]


def test_t5_writes_what_it_writes_to_the_source_with_its_prefix():
    model, config = made("encoder")
    config = dataclasses.replace(config, prefix="the dog ")
    for options in ({}, {"num_beams": 3, "length_penalty": 0.6}):
        found = answers(model, dataclasses.replace(config, **options), PAIRS)
        end, pad = model.tokenizer.specials.end, model.tokenizer.specials.pad
        prompts = [model.tokenizer.encode(config.prefix + p.source) + [end] for p in PAIRS]
        ids = generation.generate(
            model.model, model.params, [np.array(prompt) for prompt in prompts],
            generation.Options(max_new_tokens=16, **options),
            generation.Ids(end, pad, model.tokenizer.size, pad),
        )  # fmt: skip
        assert [one["text"] for one in found] == [model.tokenizer.decode(i).strip() for i in ids]
        assert len({one["text"] for one in found}) > 1


@pytest.mark.proof
@pytest.mark.parametrize("reader", ["causal", "prefix"])
def test_a_decoder_writes_what_it_writes_alone(reader):
    model, config = made(reader)
    found = answers(model, config, PAIRS)
    for one, row in zip(found, encode(model, config, PAIRS).rows, strict=True):
        known = row["input_ids"][: int((row["loss_weights"] == 0).sum()) + 1]
        assert one["text"] == _greedy(model, known, reader == "prefix")
    # The same without targets: none is read, and there is none to count.
    bare = answers(model, config, [TextPair(p.source) for p in PAIRS])
    assert bare == [{"text": one["text"]} for one in found]


def _greedy(model, known, prefix):
    ids = list(known)
    length = len(ids) + CONFIG.max_target_length
    for _ in range(CONFIG.max_target_length):
        padded = [ids + [0] * (length - len(ids))]
        seen = {"prefix_mask": [[1] * len(known) + [0] * (length - len(known))]} if prefix else {}
        logits = scored.apply(model, "logits", input_ids=padded, **seen)[0, len(ids) - 1]
        ids.append(int(logits[: model.tokenizer.size].argmax()))
        if ids[-1] == model.tokenizer.specials.end:
            break
    return model.tokenizer.decode(ids[len(known) :]).strip()


@pytest.mark.parametrize("reader", MODELS)
def test_right_tokens_and_their_share(reader):
    model, config = made(reader)
    encoded = encode(model, config, PAIRS)
    found = terms(model, config, batch_of(config, encoded))
    predictions = answers(model, config, PAIRS)
    right, tokens = found["lm_accuracy"]
    assert sum(one["right_tokens"] for one in predictions) == right
    assert sum(one["target_tokens"] for one in predictions) == tokens
    scores = of(config).scores(PAIRS, predictions)
    assert scores["token_accuracy"] == pytest.approx(100 * right / tokens)


@pytest.mark.proof
@pytest.mark.parametrize("reader", MODELS)
def test_the_likeliest_label_is_chosen(reader):
    model, config = made(reader)
    config = dataclasses.replace(config, answer="choose")
    labels = ["a dog", "the cat sat", "many"]
    examples = [Sentence((pair.source,), "many") for pair in PAIRS]
    found = answers(model, config, examples, labels)
    sources = [f"sentence: {pair.source}" for pair in PAIRS]
    for one, source in zip(found, sources, strict=True):
        if reader == "encoder":
            sums = scoring.log_likelihood_of_continuations(model, [source] * 3, labels).sums
        else:
            pairs = [TextPair(source, (label,)) for label in labels]
            rows = encode(model, config, pairs, labels).rows
            sums = np.array([sum(_steps(model, config, row)) for row in rows])
        chances = np.exp(sums - np.logaddexp.reduce(sums))
        best = int(sums.argmax())
        assert one["label"] == one["text"] == labels[best] == next(iter(one["probabilities"]))
        for label, chance in zip(labels, chances, strict=True):
            assert one["probabilities"][label] == pytest.approx(chance, abs=1e-3)


def test_choices_of_each_example():
    model, config = made("causal")
    config = dataclasses.replace(config, answer="choose")
    examples = [
        Choice("the cat", ("sat", "ran home", "a"), 1), Choice("a dog", ("the mat", "saw"), 0)
    ]  # fmt: skip
    assert of(config).label_names(examples) == []
    of(config, task="task").check(examples)
    found = answers(model, config, examples)
    for one, example in zip(found, examples, strict=True):
        assert set(one["probabilities"]) == set(example.choices)
        assert sum(one["probabilities"].values()) == pytest.approx(1)
        assert example.choices[one["label"]] == one["text"]
    right = [one["label"] == example.label for one, example in zip(found, examples, strict=True)]
    scores = of(config).scores(examples, found)
    assert scores["accuracy"] == 100 * np.mean(right)


@pytest.mark.parametrize("reader", MODELS)
def test_prompts_are_read_behind_the_first_token(reader):
    model, config = made(reader)
    encoded = encode(model, config, PAIRS)
    ids = (5, 6)
    outputs = of(config, prompt_ids=ids).predict_loop(model, encoded)
    longer = [text_rows.prompted(row, ids) for row in encoded.rows]
    assert all(row["input_ids"][1:3].tolist() == [5, 6] for row in longer)
    by_hand = dataclasses.replace(encoded, rows=longer)
    expected = of(config).predict_loop(model, by_hand)
    plain = of(config).predict_loop(model, encoded)
    for name, values in expected.items():
        np.testing.assert_array_equal(outputs[name], values)
    assert np.abs(plain["log_likelihood"] - outputs["log_likelihood"]).max() > 0.01
    np.testing.assert_array_equal(plain["tokens"], outputs["tokens"])


@pytest.mark.proof
@pytest.mark.parametrize("reader", ["encoder", "causal"])
def test_it_learns_to_answer(reader):
    """Labels of sentences in words, written by the model that a few steps have taught them."""
    model, config = made(reader)
    config = dataclasses.replace(config, task="animals")
    examples = [
        Sentence((f"{a} {animal} {b}",), animal)
        for a in ("the", "a") for animal in ("cat", "dog") for b in ("sat", "ran", "saw home")
    ]  # fmt: skip
    labels = of(config).label_names(examples)
    encoded = encode(model, config, examples, labels)
    batch = batch_of(config, encoded)
    params = plugins.init_params(model.model, jax.random.key(0))
    options = {"steps": 60, "rate": 3e-3}
    params, losses = task_types.fit(text_to_text, config, model.model, params, batch, **options)
    assert losses[-1] < 0.1 * losses[0]
    taught = pretrained.Pretrained(dataclasses.replace(model.source, params=params))
    found = answers(taught, config, examples, labels)
    assert of(config, labels).scores(examples, found)["accuracy"] > 90


# Scores


def said(*texts, **others):
    """Predictions with these texts."""
    return [{"text": text, "target_tokens": 2, "right_tokens": 2, **others} for text in texts]


def score(examples, predictions, labels):
    return of(CONFIG, labels).scores(examples, predictions)


def test_scores_of_pairs():
    pairs = [TextPair("a", ("x", "the cat sat on the mat")), TextPair("b", ("a dog ran away now",))]
    found = score(pairs, said("the cat sat on the mat", "a dog ran away now"), [])
    assert found == pytest.approx(dict.fromkeys(found, 100))
    assert set(found) == {
        "bleu", "rouge1", "rouge2", "rougeL", "exact_match", "f1", "accuracy", "token_accuracy",
    }  # fmt: skip
    found = score(pairs, said("The cat sat on the mat!", ""), [])
    assert (found["exact_match"], found["accuracy"], found["rouge1"]) == (50, 0, 50)
    assert score([TextPair("a")], [{"text": "b"}], []) == {}  # nothing to compare with


def test_scores_of_questions_sentences_and_words():
    questions = [
        Question("1", "Who?", "Ada.", (("Ada", 0),)), Question("2", "Who?", "Ada.", (), True)
    ]  # fmt: skip
    found = score(questions, said("ada", ""), [])
    assert (found["exact_match"], found["no_answer_accuracy"]) == (100, 100)
    sentences = [Sentence((text,), text) for text in ("no", "yes", "yes", "no")]
    others = {"text": "", "target_tokens": 1, "right_tokens": 1}
    told = [{"label": label, **others} for label in ("no", "yes", None, None)]
    found = score(sentences, told, ["no", "yes"])
    assert (found["accuracy"], found["f1"]) == (50, 50)  # t5's f1_score_with_invalid
    numbers = [Sentence(("a", "b"), value) for value in (0.0, 2.0, 1.0)]
    told = [dict(one, label=value) for one, value in zip(told, (0.0, 1.0, None), strict=False)]
    assert score(numbers, told, [])["spearman"] == pytest.approx(86.6025)
    words = [Words(("Ada", "ran"), ("B-PER", "O"))]
    assert score(words, said("PER: Ada"), [])["f1"] == 100


def test_labels_are_read_as_the_tokenizer_writes_them():
    model = scored.make("gpt2", "wordpiece")
    label = "Not_The_Cat"  # uncased, and a token for each sign
    ids = model.tokenizer.encode(label)
    assert model.tokenizer.decode(ids) != label
    outputs = {"token_ids": np.array([ids] * 2), "tokens": np.zeros(2), "right": np.zeros(2)}
    examples = [Sentence(("a",)), Choice("a", ("no", label))]
    found = of(CONFIG, [label, "no"], tokenizer=model.tokenizer).decode(examples, None, outputs)
    assert [one["label"] for one in found] == [label, 1]
