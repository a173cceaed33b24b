"""Decoding: transformers' tokens, no say of the other rows, draws from the right sets."""

import functools

import jax
import numpy as np
import pytest

from benchmarks import parity
from bertjax import errors, plugins
from bertjax.artifact import loading
from bertjax.inference import decoding, generation
from tests.helpers import encoders, proofs

needs_transformers = pytest.mark.skipif(
    parity.transformers is None, reason="transformers and torch are not installed"
)
torch, transformers = parity.torch, parity.transformers
V, EOS, PAD, START = 31, 3, 0, 1
NEW = 14
IDS = generation.Ids(EOS, PAD, V, PAD)
GPT2 = {
    "vocab_size": V, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
    "intermediate_size": 64, "max_length": 128,
}  # fmt: skip


@functools.cache
def gpt2(seed=0, pull=0.6):
    """A random model, pulled towards the end of the text."""
    model, params = encoders.make("gpt2", seed, **GPT2)
    end = params["embeddings"]["word"]["embedding"][EOS]
    params["final_norm"]["bias"] = params["final_norm"]["bias"] + pull * end
    return model, params


def prompts(count=5, seed=0):
    """Ragged ones, of up to 12 tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(4, V, n, np.int32) for n in rng.integers(1, 13, count)]


def decode(which, many, **options):
    """What these prompts go on with, as lists."""
    model, params = which
    options = generation.Options(**{"max_new_tokens": NEW, **options})
    return [ids.tolist() for ids in generation.generate(model, params, many, options, IDS)]


# The same tokens as transformers


def _their_gpt2(seed):
    config = transformers.GPT2Config(
        vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=START,
        eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = parity.randomize(transformers.GPT2LMHeadModel(config).eval(), seed)
    with torch.no_grad():
        model.transformer.ln_f.bias += (1.5 + 0.5 * seed) * model.transformer.wte.weight[EOS]
    return model


def _their_t5(seed, untied):
    config = transformers.T5Config(
        vocab_size=V, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, pad_token_id=PAD,
        eos_token_id=EOS, decoder_start_token_id=PAD, tie_word_embeddings=not untied,
        feed_forward_proj="gated-gelu" if untied else "relu",
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = transformers.T5ForConditionalGeneration(config).eval()
    if untied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    parity.randomize(model, seed)
    with torch.no_grad():
        model.lm_head.weight[EOS] *= 5
    return model


THEIRS = {
    "gpt2": _their_gpt2,
    "t5 v1.0": functools.partial(_their_t5, untied=False),
    "t5 v1.1": functools.partial(_their_t5, untied=True),
}
BEAMS = [
    {"num_beams": 3, "length_penalty": penalty, "early_stopping": early}
    for penalty in (0.0, 1.0, 2.0)
    for early in (False, True)
]
OPTIONS = [
    {},
    {"min_new_tokens": 4},
    *BEAMS,
    {"num_beams": 4},
    {"num_beams": 3, "min_new_tokens": 4},
]


def _their_tokens(model, many, left, options):
    """Up to the end of the text of each."""
    length = max(map(len, many))
    ids, mask = np.full((len(many), length), PAD), np.zeros((len(many), length), int)
    for i, prompt in enumerate(many):
        at = slice(length - len(prompt), None) if left else slice(0, len(prompt))
        ids[i, at], mask[i, at] = prompt, 1
    with torch.no_grad():
        rows = model.generate(
            torch.tensor(ids), attention_mask=torch.tensor(mask), max_new_tokens=NEW,
            do_sample=False, **{"num_beams": 1, **options},
        )  # fmt: skip
    rows = rows[:, length if left else 1 :].tolist()
    rows = [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]
    return rows


@needs_transformers
@pytest.mark.parametrize(
    ("name", "seed"),
    proofs.all_but(
        [("gpt2", 0), ("gpt2", 1), ("t5 v1.0", 0), ("t5 v1.1", 1)], ("gpt2", 0), ("t5 v1.1", 1)
    ),
)
def test_same_tokens_as_transformers(tmp_path, name, seed):
    theirs = THEIRS[name](seed)
    theirs.save_pretrained(tmp_path)
    parity.write_vocabulary(tmp_path)
    source = loading.load(tmp_path)
    ours = plugins.model(source.family, source.fields), source.params
    many, found = prompts(6, seed), []
    for options in OPTIONS:
        wanted = _their_tokens(theirs, many, name == "gpt2", options)
        found.append(decode(ours, many, **options))
        # They fill rows that are not the longest one with padding, which we leave away.
        for mine, other in zip(found[-1], wanted, strict=True):
            assert mine == other, options
    ended = [row[-1] == EOS for rows in found for row in rows]
    assert 0.1 < np.mean(ended) < 1.0  # both ways to end are seen
    assert len({str(rows) for rows in found}) > 3  # and the options matter


# What a row depends on


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3, "length_penalty": 0.5}, {"temperature": 1.0, "top_p": 0.9, "seed": 5}],
)
def test_rows_do_not_depend_on_each_other(options):
    many = prompts(37)  # more than a batch
    found = decode(gpt2(), many, **options)
    for row in (0, 3, 20, 36):
        others = prompts(row, seed=1) + [many[row]] + prompts(2, seed=2)
        assert decode(gpt2(), others, **options)[row] == found[row]
    assert decode(gpt2(), many[:1], **options) == found[:1]
    assert len({tuple(row) for row in found}) > 10


def test_decoding_is_step_by_step_the_likeliest():
    model, params = gpt2()
    (prompt,) = prompts(1)
    (found,) = decode(gpt2(), [prompt], min_new_tokens=NEW)
    row, forward = np.zeros((1, 32), np.int32), jax.jit(model.apply)
    row[0, : len(prompt)] = prompt
    for place, token in enumerate(found, len(prompt)):
        logits = np.array(forward({"params": params}, row)["logits"][0, place - 1])
        logits[EOS] = -np.inf
        assert token == logits.argmax()
        row[0, place] = token
    assert len(found) == NEW


def test_a_prefix_is_read_without_direction():
    model, params = gpt2()
    many, forward = prompts(4), jax.jit(model.apply)
    options = generation.Options(max_new_tokens=5, min_new_tokens=5)
    found = generation.generate(model, params, many, options, IDS, prefix=True)
    for prompt, tokens in zip(many, found, strict=True):
        row = np.zeros((1, 32), np.int32)
        row[0, : len(prompt) + 5] = [*prompt, *tokens]
        seen = (np.arange(32) < len(prompt)).astype(np.int32)[None]
        logits = np.array(forward({"params": params}, row, prefix_mask=seen)["logits"])
        logits[..., EOS] = -np.inf
        assert logits[0, len(prompt) - 1 : len(prompt) + 4].argmax(-1).tolist() == tokens.tolist()
    assert [row.tolist() for row in found] != decode(
        gpt2(), many, max_new_tokens=5, min_new_tokens=5
    )


def test_ids_that_the_tokenizer_lacks_are_never_chosen():
    model, params = gpt2()
    few = generation.Ids(EOS, PAD, 12, PAD)
    for options in ({"num_beams": 3}, {"temperature": 5.0}, {}):
        options = generation.Options(max_new_tokens=NEW, **options)
        found = generation.generate(model, params, prompts(8), options, few)
        assert max(map(max, found)) < 12


@pytest.mark.proof
def test_few_programs_are_compiled(monkeypatch):
    traced = []
    start = decoding._start_decoder
    monkeypatch.setattr(decoding, "_start_decoder", lambda *a: traced.append(1) or start(*a))
    decoding.decode.clear_cache()
    for count, longest in ((3, 10), (4, 31), (4, 5)):  # four rows, 32 slots
        many = [np.arange(4, 4 + longest, dtype=np.int32) % V] * count
        for options in (
            {"num_beams": 2}, {"num_beams": 2, "length_penalty": 2.0, "early_stopping": True},
            {"num_beams": 2, "max_new_tokens": 9, "min_new_tokens": 3},
        ):  # fmt: skip
            decode(gpt2(), many, **options)
    assert len(traced) == 1
    decode(gpt2(), many, temperature=1.0)
    decode(gpt2(), many, temperature=0.5, seed=3)
    assert len(traced) == 2


# Draws


def _next_probabilities(prompt):
    model, params = gpt2()
    logits = np.array(model.apply({"params": params}, prompt[None])["logits"], np.float64)[0, -1]
    logits = logits[:V] / 2.0
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


@pytest.fixture(scope="module")
def draws():
    """400 draws of one token each at temperature 2, by options."""
    (prompt,) = prompts(1)

    def run(**options):
        rows = decode(gpt2(), [prompt] * 400, max_new_tokens=1, temperature=2.0, **options)
        return np.bincount([row[0] for row in rows], minlength=V) / 400

    return run


@pytest.mark.proof
def test_draws_follow_the_softmax(draws):
    (prompt,) = prompts(1)
    p = _next_probabilities(prompt)
    assert np.abs(draws() - p).sum() / 2 < 0.1  # total variation; 0.05 is expected
    assert np.abs(draws() - draws(seed=1)).sum() > 0


@pytest.mark.proof
@pytest.mark.parametrize("k", [1, 2, 7])
def test_top_k_never_leaves_its_set(draws, k):
    (prompt,) = prompts(1)
    best = set(np.argsort(-_next_probabilities(prompt))[:k])
    assert set(np.flatnonzero(draws(top_k=k))) == best


@pytest.mark.parametrize("p", [0.05, 0.5, 0.8])
def test_top_p_never_leaves_its_set(draws, p):
    """The fewest tokens whose probabilities sum up to p."""
    (prompt,) = prompts(1)
    probabilities = _next_probabilities(prompt)
    order = np.argsort(-probabilities)
    count = 1 + int((np.cumsum(probabilities[order]) < p).sum())
    # Each of them is to come 11 times or more, on average.
    assert set(np.flatnonzero(draws(top_p=p))) == set(order[:count])


@pytest.mark.proof
def test_temperature_to_zero_is_greedy():
    many = prompts(8)
    greedy = decode(gpt2(), many)
    for temperature in (1e-7, 1e-30):
        assert decode(gpt2(), many, temperature=temperature) == greedy
    assert decode(gpt2(), many, temperature=1.0, top_k=1) == greedy
    assert decode(gpt2(), many, temperature=3.0) != greedy


def test_seed_decides_the_draws():
    many = prompts(8)
    found = [decode(gpt2(), many, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    same = decode(gpt2(), [many[0]] * 8, temperature=2.0)
    assert len({tuple(row) for row in same}) > 4  # as many samples of one prompt


@needs_transformers
def test_truncation_is_that_of_transformers():
    logits = np.random.default_rng(0).normal(0, 2, (6, 50)).astype(np.float32)
    for k, p in ((5, 1.0), (0, 0.7), (8, 0.5), (50, 0.95), (99, 1.0)):
        wanted = torch.tensor(logits)
        if k:
            wanted = transformers.TopKLogitsWarper(k)(None, wanted)
        wanted = transformers.TopPLogitsWarper(p)(None, wanted).numpy()
        found = np.array(decoding.truncate(logits, k, p))
        np.testing.assert_array_equal(found > -1e8, np.isfinite(wanted), err_msg=f"{k} {p}")


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"min_new_tokens": 99}, "min_new_tokens = 99"),
        ({"temperature": -1.0}, "temperature = -1.0"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_k": 5}, "top_k = 5: must be 0 unless temperature"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p = 0.0"),
        ({"num_beams": 0}, "num_beams = 0"),
        ({"num_beams": 2, "temperature": 1.0}, "beams are not sampled"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_impossible_options_are_named(options, message):
    with pytest.raises(errors.UserError, match=message):
        generation.Options(**options)
