"""The PyTorch side of `benchmarks/finetune.py`: transformers' models in a plain training loop.

Examples are read, sampled and scored with the readers and scorers of bertjax. Tokens, windows,
labels of pieces and answers are computed here with transformers' own tokenizers, as in its example
scripts.
"""

import dataclasses
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from seqeval import metrics as seqeval_metrics

from bertjax.finetuning import squad_scores, tasks
from bertjax.finetuning.examples import splits

IGNORED = -100
DOC_STRIDE, N_BEST, MAX_ANSWER = 128, 20, 30


@dataclasses.dataclass
class Problem:
    """A task: its model class, rows of train and dev, and the function that scores dev's logits."""

    model: type
    fields: dict[str, Any]
    train: list[dict[str, list[int]]]
    dev: list[dict[str, list[int]]]
    score: Callable[[list[Any]], dict[str, float]]


def finetune(
    model: str,
    task: str,
    files: tuple[str, str],
    *,
    seeds: int,
    num_epochs: int,
    learning_rate: float,
    max_length: int,
    batch_size: int,
    max_train: int,
    bfloat16: bool,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    first_seed: int = 0,
) -> dict[str, Any]:
    """Trains every seed and scores dev after every epoch; returns as `benchmarks.finetune.ours`.

    warmup: the fraction of the steps in which the rate rises. "last_scores" of a run are those
    after its last epoch, "scores" those of its best one.
    """
    found = tasks.find(task)
    train, dev = (
        tasks.read(found, file, split) for file, split in zip(files, ("train", "dev"), strict=True)
    )
    train = splits.sample(train, max_train)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    make = {"classification": _sentences, "tokens": _words, "extractive_qa": _questions}
    problem = make[found.kind](tokenizer, train, dev, max_length, task)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps = num_epochs * -(-len(problem.train) // batch_size)

    def one(seed: int) -> dict[str, Any]:
        transformers.set_seed(seed)
        network = problem.model.from_pretrained(model, **problem.fields).to(device)
        started = time.perf_counter()
        optimizer = adamw(network, learning_rate, weight_decay)
        schedule = transformers.get_linear_schedule_with_warmup(
            optimizer, round(warmup * steps), steps
        )
        cast = torch.autocast(device.type, torch.bfloat16, enabled=bfloat16)
        shuffle = random.Random(seed)
        evaluations = []
        for _ in range(num_epochs):
            network.train()
            losses = []
            for rows in _batches(problem.train, batch_size, shuffle):
                with cast:
                    loss = network(**_collate(tokenizer, rows, device)).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(float(loss.detach()))
            with cast:
                logits = _predict(network, tokenizer, problem.dev, 2 * batch_size, device)
            evaluations.append((float(np.mean(losses)), problem.score(logits)))
        main = found.metrics[0]
        best = max(range(num_epochs), key=lambda epoch: evaluations[epoch][1][main])
        return {
            "scores": evaluations[best][1],
            "last_scores": evaluations[-1][1],
            "best_epoch": best + 1,
            "losses": [loss for loss, _ in evaluations],
            "seconds": time.perf_counter() - started,
        }

    return {
        "runs": [one(seed) for seed in range(first_seed, first_seed + seeds)],
        "steps": steps,
        "library": f"torch {torch.__version__}, transformers {transformers.__version__}",
    }


def adamw(network: Any, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """Returns AdamW without weight decay on biases and norms."""
    bare = [p for n, p in network.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    names = {id(p) for p in bare}
    decayed = [p for p in network.parameters() if id(p) not in names]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": bare, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, eps=1e-6, fused=True)


def _batches(rows: list[Any], size: int, shuffle: random.Random) -> Iterator[list[Any]]:
    """Yields each row once, in batches of similar length: sorted within 50 batches, shuffled."""
    order = shuffle.sample(range(len(rows)), len(rows))
    chunks = [order[i : i + 50 * size] for i in range(0, len(order), 50 * size)]
    sorted_ = [i for c in chunks for i in sorted(c, key=lambda i: -len(rows[i]["input_ids"]))]
    cut = [sorted_[i : i + size] for i in range(0, len(sorted_), size)]
    for batch in shuffle.sample(cut, len(cut)):
        yield [rows[i] for i in batch]


def _collate(tokenizer: Any, rows: list[dict[str, Any]], device: Any) -> dict[str, torch.Tensor]:
    """Returns the rows as one batch, padded to the longest row."""
    longest = max(len(row["input_ids"]) for row in rows)
    fills = {"input_ids": tokenizer.pad_token_id, "labels": IGNORED}
    batch = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, list):
            fill = fills[name] if name in fills else 0
            values = [value + [fill] * (longest - len(value)) for value in values]
        batch[name] = torch.tensor(values, device=device)
    return batch


@torch.no_grad()
def _predict(network: Any, tokenizer: Any, rows: list[Any], size: int, device: Any) -> list[Any]:
    """Returns each row's logits without padding: [labels], [length, labels] or [length, 2]."""
    network.eval()
    found: list[Any] = [None] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    for start in range(0, len(order), size):
        places = order[start : start + size]
        out = network(**_collate(tokenizer, [rows[i] for i in places], device))
        if "start_logits" in out:
            logits = torch.stack([out.start_logits, out.end_logits], dim=-1)
        else:
            logits = out.logits
        for place, values in zip(places, logits.float().cpu().numpy(), strict=True):
            by_token = values.ndim == 2
            found[place] = values[: len(rows[place]["input_ids"])] if by_token else values
    return found


# The tasks


def _sentences(
    tokenizer: Any, train: Sequence, dev: Sequence, max_length: int, task: str
) -> Problem:
    labels = sorted({example.label for example in train})
    truth = [example.label for example in dev]

    def rows(examples: Sequence, labelled: bool) -> list[dict[str, Any]]:
        columns = [list(texts) for texts in zip(*(e.texts for e in examples), strict=True)]
        encoded = tokenizer(*columns, truncation=True, max_length=max_length)
        found = [{n: encoded[n][i] for n in encoded} for i in range(len(examples))]
        for row, example in zip(found, examples if labelled else (), strict=labelled):
            row["labels"] = labels.index(example.label)
        return found

    def score(logits: list[Any]) -> dict[str, float]:
        right = [labels[x.argmax()] == label for x, label in zip(logits, truth, strict=True)]
        return {"accuracy": 100 * float(np.mean(right))}

    model = transformers.AutoModelForSequenceClassification
    return Problem(model, {"num_labels": len(labels)}, rows(train, True), rows(dev, False), score)


def _words(tokenizer: Any, train: Sequence, dev: Sequence, max_length: int, task: str) -> Problem:
    labels = sorted({tag for example in train for tag in example.tags})

    def encode(examples: Sequence) -> tuple[list[dict[str, Any]], list[list[int | None]]]:
        words = [list(example.words) for example in examples]
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
        rows = [{n: encoded[n][i] for n in encoded} for i in range(len(examples))]
        return rows, [encoded.word_ids(i) for i in range(len(examples))]

    train_rows, owners = encode(train)
    for row, owner, example in zip(train_rows, owners, train, strict=True):
        firsts = [w is not None and (i == 0 or owner[i - 1] != w) for i, w in enumerate(owner)]
        row["labels"] = [
            labels.index(example.tags[w]) if first else IGNORED
            for w, first in zip(owner, firsts, strict=True)
        ]
    dev_rows, dev_owners = encode(dev)

    def score(logits: list[Any]) -> dict[str, float]:
        found = []
        for x, owner, example in zip(logits, dev_owners, dev, strict=True):
            tags = ["O"] * len(example.tags)  # remains for words that were truncated
            for i, word in reversed(list(enumerate(owner))):
                if word is not None:
                    tags[word] = labels[x[i].argmax()]
            found.append(tags)
        truth = [list(example.tags) for example in dev]
        return {"f1": 100 * float(seqeval_metrics.f1_score(truth, found))}

    model = transformers.AutoModelForTokenClassification
    return Problem(model, {"num_labels": len(labels)}, train_rows, dev_rows, score)


def _questions(
    tokenizer: Any, train: Sequence, dev: Sequence, max_length: int, task: str
) -> Problem:
    impossible = task == "squad_v2"

    def encode(examples: Sequence) -> tuple[list[dict[str, Any]], Any]:
        encoded = tokenizer(
            [example.question.strip() for example in examples],
            [example.context for example in examples],
            truncation="only_second",
            max_length=max_length,
            stride=DOC_STRIDE,  # tokens that two windows share
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        names = [n for n in ("input_ids", "attention_mask", "token_type_ids") if n in encoded]
        rows = [{n: encoded[n][i] for n in names} for i in range(len(encoded["input_ids"]))]
        return rows, encoded

    train_rows, encoded = encode(train)
    for i, row in enumerate(train_rows):
        example = train[encoded["overflow_to_sample_mapping"][i]]
        first, last = _answer_tokens(example, encoded["offset_mapping"][i], encoded.sequence_ids(i))
        row["start_positions"], row["end_positions"] = first, last
    dev_rows, dev_encoded = encode(dev)

    def score(logits: list[Any]) -> dict[str, float]:
        best: list[tuple[float, str]] = [(-np.inf, "")] * len(dev)
        null = [np.inf] * len(dev)
        for i, x in enumerate(logits):
            owner = dev_encoded["overflow_to_sample_mapping"][i]
            spans = dev_encoded["offset_mapping"][i], dev_encoded.sequence_ids(i)
            null[owner] = min(null[owner], float(x[0].sum()))
            best[owner] = max(best[owner], _best_span(x, *spans, dev[owner].context))
        references = [[text for text, _ in e.answers] for e in dev]
        answers = [text for _, text in best]
        if impossible:
            odds = np.array([n - s for n, (s, _) in zip(null, best, strict=True)])
            _, f1 = squad_scores.of_answers(references, answers, impossible=True)
            answered = squad_scores.has_answer(references)
            threshold = squad_scores.best_threshold(f1, answered, odds).threshold
            answers = [a if o <= threshold else "" for a, o in zip(answers, odds, strict=True)]
        return squad_scores.scores(references, answers, impossible=impossible)

    model = transformers.AutoModelForQuestionAnswering
    return Problem(model, {}, train_rows, dev_rows, score)


def _answer_tokens(example: Any, offsets: list, sides: list) -> tuple[int, int]:
    """Returns the answer's first and last token in a window; (0, 0) if not entirely inside."""
    if example.impossible or not example.answers:
        return 0, 0
    text, start = example.answers[0]
    stop = start + len(text)
    inside = [i for i, side in enumerate(sides) if side == 1]
    if offsets[inside[0]][0] > start or offsets[inside[-1]][1] < stop:
        return 0, 0
    first = max(i for i in inside if offsets[i][0] <= start)
    last = min(i for i in inside if offsets[i][1] >= stop)
    return first, last


def _best_span(logits: Any, offsets: list, sides: list, context: str) -> tuple[float, str]:
    """Returns (score, text) of the best answer in a window."""
    best = (-np.inf, "")
    firsts, lasts = (np.argsort(logits[:, side])[::-1][:N_BEST] for side in (0, 1))
    for first in firsts:
        for last in lasts:
            inside = sides[first] == 1 and sides[last] == 1
            if inside and first <= last < first + MAX_ANSWER:
                score = float(logits[first, 0] + logits[last, 1])
                text = context[offsets[first][0] : offsets[last][1]]
                best = max(best, (score, text))
    return best
