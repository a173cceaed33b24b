"""The corpus, the labelled files and the tables of cases of benchmarks.outside.

Everything is a function of fixed seeds, so that every call writes the same bytes.
"""

import json
import pathlib
import random
from collections.abc import Sequence

SUBJECTS = ("the cat", "a dog", "my horse", "the old sailor", "her brother", "two teachers")
VERBS = ("saw", "found", "carried", "painted", "sold", "wanted", "overlooked")
OBJECTS = ("a red boat", "the small house", "7 apples", "an old letter", "the blue lamp")
ENDS = ("yesterday", "in the morning", "by the river", "without a word", "twice", "at last")
SYLLABLES = ("ka", "lum", "ri", "sen", "to", "var", "mi", "zeb", "po", "ning", "da", "quil")
ODD = (
    "Fünf Äpfel für 3,50 €, naïve façade, e\u0301te\u0301.",
    "他在河边看到一艘红色的船。 Ещё одна строка.",
    "Emoji \U0001f600 and tab\tand  two spaces;\na line of its own.\n\nA paragraph.",
    "x" * 150 + " http://example.org/a?b=c&d=e#f don't can't U.S.A. 1,000,000.5",
    "",
)
LABELS = ("good", "bad", "so so")
PEOPLE = ("Ada", "Grace", "Alan")
SPLITS = (("train", 24), ("dev", 8), ("test", 8))

# Every run is shrunk by these keys; those of a case come after them.
SMALL = {
    "model.hidden_size": 16, "model.intermediate_size": 32, "model.vocab_size": 320,
    "batch_size": 8, "num_steps": 4, "phase2.num_steps": 0, "log_every": 1, "eval.every": 2,
    "eval.max_samples": 16, "checkpoint.every": 2, "optimizer.warmup_steps": 1,
}  # fmt: skip
LOUD = {"model.init_std": 0.2}  # so that a model of width 16 tells its inputs apart
# What configs/modernbert_base.py once had, so that its digests stay the same.
ADAMW = {"phases": (), "model.global_theta": 160_000.0, "optimizer.name": "adamw",
         "optimizer.schedule": "wsd", "optimizer.weight_decay": 1e-5,
         "optimizer.clip_norm": 1.0}  # fmt: skip
# Tokenizer -> flags of `bertjax tokenizer`.
TOKENIZERS = {
    "wordpiece": ["--kind=wordpiece", "--vocab_size=200"],
    "cased": ["--kind=wordpiece", "--vocab_size=210", "--lowercase=false"],
    "bpe": ["--kind=bpe", "--vocab_size=300"],
    "unigram": ["--kind=unigram", "--vocab_size=200"],
    "bytes": ["--kind=bytes"],
}
# Run -> (config file, tokenizer, keys).
RUNS = {
    "bert": ("bert_base", "wordpiece", {**LOUD, "phase2.num_steps": 2, "phase2.batch_size": 4}),
    "albert": ("albert_base", "unigram", LOUD),
    "roberta": ("roberta_base", "bpe", LOUD),
    "electra": ("electra_small", "wordpiece", LOUD),
    "modernbert": ("modernbert_base", "bpe", {**LOUD, "optimizer.decay_steps": 2, **ADAMW}),
    "spanbert": ("spanbert_base", "cased", LOUD),
    "distilbert": ("distilbert_base", "wordpiece",
                   {"objective.teacher": "runs/bert", "model.num_layers": 1,
                    "micro_batch_size": 4}),
    "gpt2": ("gpt2_small", "bpe", LOUD),
    "t5": ("t5_small", "unigram", {}),
    "t5_v1_1": ("t5_v1_1_base", "unigram", {}),
    "ul2": ("ul2_base", "unigram", {}),
    "byt5": ("t5_small", "bytes", {"model.vocab_size": 384, "objective.z_loss": 1e-4}),
    "adapted": ("domain_adaptation", "wordpiece",
                {"init_from": "runs/bert", "micro_batch_size": 4, "eval.max_samples": 8}),
    "new_words": ("domain_adaptation", "cased",
                  {"init_from": "runs/bert", "init_vocabulary": "shared_pieces",
                   "micro_batch_size": 0, "data.heldout_path": "prepared/cased"}),
    "lamb": ("bert_tiny", "wordpiece",
             {**LOUD, "optimizer.name": "lamb", "optimizer.schedule": "cosine", "remat": "full",
              "micro_batch_size": 2, "objective.pair": "none", "objective.packing": True}),
    "padded": ("gpt2_small", "bpe",
               {**LOUD, "objective.packing": False, "optimizer.schedule": "wsd",
                "optimizer.decay_steps": 2}),
    "prefix": ("gpt2_small", "bpe", {**LOUD, "objective.name": "prefix_lm"}),
    "t5_prefix": ("t5_small", "unigram", {"objective.name": "prefix_lm"}),
}  # fmt: skip
TWO_PHASES = {"phase2.num_steps": 2, "phase2.length": 64, "phase2.batch_size": 4,
              "optimizer.schedule": "linear", "optimizer.decay_steps": 0,
              "optimizer.decay_shape": "linear"}  # fmt: skip
RESUMED = ("bert", "electra", "t5")  # from the checkpoint in the middle
MASKED = ("wordpiece", "unigram")  # tokenizers of the batches of encoders
# Batches -> (config file, tokenizers, keys of the objective).
BATCHES = {
    **{name: (config, (tokenizer,), {}) for name, (config, tokenizer, keys) in RUNS.items()
       if name not in ("lamb", "padded", "prefix", "t5_prefix", "new_words")},
    **{f"mlm_{masking}": ("bert_base", MASKED, {"pair": "none", "masking": masking})
       for masking in ("token", "whole_word", "ngram", "span")},
    **{f"mlm_{masking}_packed": ("bert_base", MASKED,
                                 {"pair": "none", "masking": masking, "packing": True})
       for masking in ("token", "span")},
    "mlm_nsp": ("bert_base", ("unigram", "bpe"), {"random_next_rate": 0.3}),
    "mlm_sop": ("albert_base", MASKED, {"masking": "span", "mask_rate": 0.3}),
    "mlm_one_document": ("bert_base", MASKED, {"pair": "none", "cross_documents": False}),
    "mlm_short": ("bert_base", MASKED, {"pair": "none", "short_rate": 0.9}),
    "mlm_kept": ("bert_base", MASKED, {"mask_token_rate": 0.2, "random_token_rate": 0.4}),
    "distillation_packed": ("distilbert_base", MASKED,
                            {"packing": True, "cross_documents": False}),
    "electra_packed": ("electra_small", MASKED, {"packing": True}),
    "span_boundary_packed": ("spanbert_base", MASKED, {"packing": True}),
    **{f"causal_lm_{packing}": ("gpt2_small", ("bpe", "unigram"), {"packing": packing == "packed"})
       for packing in ("packed", "padded")},
    **{f"prefix_lm_{config}_{packing}":
       (config, ("bpe", "unigram"), {"name": "prefix_lm", "packing": packing == "packed"})
       for config in ("gpt2_small", "t5_small") for packing in ("packed", "padded")},
    **{f"{name}_{packing}":
       ("t5_small", ("unigram", "wordpiece"), {"name": name, "packing": packing == "packed"})
       for name in ("span_corruption", "denoisers") for packing in ("packed", "padded")},
    "denoisers_no_modes": ("ul2_base", ("unigram",), {"mode_tokens": False, "s_rate": 0.5}),
    "span_corruption_dense": ("t5_small", ("unigram", "bytes"),
                              {"noise_density": 0.5, "mean_noise_span_length": 1.5}),
}  # fmt: skip

QUICK = {"batch_size": 8, "num_epochs": 2, "max_length": 32}
WRITTEN = {**QUICK, "max_length": 40, "kind.max_target_length": 10}
LONGER = {"num_epochs": 12, "learning_rates": "2e-2"}  # learns something
SPEAKS = {"num_epochs": 16, "learning_rates": "3e-2", "optimizer.name": "adamw_rms"}
# Fine-tuning -> (model, task, folder of the data, keys).
TASKS = {
    "classification": ("runs/bert", "classification", "labels",
                       {"learning_rates": "1e-3,5e-3", "seeds": 2}),
    "class_weights": ("runs/bert", "classification", "labels",
                      {"kind.class_weights": True, "evals_per_epoch": 2, "early_stopping": 1}),
    "no_dev": ("runs/bert", "classification", "labels/train.tsv", {"data.max_train": 16}),
    "pair": ("runs/bert", "pair", "pairs", {}),
    "regression": ("runs/bert", "regression", "scores", {}),
    "ner": ("runs/bert", "ner", "entities", LONGER),
    "ner_windows": ("runs/bert", "ner", "entities",
                    {"max_length": 10, "kind.overlap": 3, "kind.label_pieces": "all",
                     "kind.repair": True}),
    "tokens": ("runs/bert", "tokens", "words", {"kind.encoding": "words"}),
    "qa": ("runs/bert", "qa", "questions", {"kind.doc_stride": 8}),
    "squad_v2": ("runs/bert", "squad_v2", "unanswered", {"kind.doc_stride": 8}),
    "multiple_choice": ("runs/bert", "multiple_choice", "choices", {}),
    "embeddings": ("runs/bert", "embeddings", "matches", {}),
    "similarity": ("runs/bert", "similarity", "scores", {"kind.pooling": "cls"}),
    "text_to_text": ("runs/t5", "text_to_text", "texts", {**WRITTEN, **SPEAKS}),
    "translation": ("runs/t5_v1_1", "translation", "texts",
                    {**WRITTEN, "kind.prefix": "translate: ", "kind.num_beams": 2}),
    "summarization": ("runs/byt5", "summarization", "texts", {**WRITTEN, "max_length": 60}),
    "generative_qa": ("runs/ul2", "generative_qa", "texts", WRITTEN),
    "sst2_written": ("runs/t5", "sst2:text_to_text", "glue/SST-2",
                     {**WRITTEN, "kind.answer": "choose"}),
    "ner_written": ("runs/t5", "ner:text_to_text", "entities",
                    {**WRITTEN, **SPEAKS, "kind.max_target_length": 24}),
    "qa_written": ("runs/t5", "qa:text_to_text", "questions", {**WRITTEN, "max_length": 60}),
    "choices_written": ("runs/t5", "multiple_choice:text_to_text", "choices", WRITTEN),
    "decoder": ("runs/gpt2", "text_to_text", "texts", WRITTEN),
    "decoder_prefix": ("runs/prefix", "text_to_text", "texts", WRITTEN),
    **{f"{family}_labels": (f"runs/{family}", "classification", "labels", {})
       for family in ("albert", "roberta", "distilbert", "electra", "modernbert", "spanbert",
                      "gpt2")},
    "of_artifact": ("artifacts/bert", "ner", "entities", {}),
    "of_hf": ("hf/roberta", "squad_v2", "unanswered", {"kind.doc_stride": 8}),
    **{f"strategy_{name}": ("runs/bert", "classification", "labels",
                            {"strategy.name": name, **knobs})
       for name, knobs in {
           "adapters": {"strategy.adapter_size": 4}, "bitfit": {}, "features": {},
           "gradual": {}, "layerwise": {}, "lora": {"strategy.rank": 2},
           "partial": {"strategy.frozen_layers": 1}, "prompts": {"strategy.length": 4},
       }.items()},
    "lora_written": ("runs/t5", "text_to_text", "texts",
                     {**WRITTEN, "strategy.name": "lora", "strategy.targets": "query,wi"}),
    "head_rate": ("runs/bert", "classification", "labels",
                  {"head_rate_factor": 10.0, "dropout_rate": 0.3, "seed": 5,
                   "optimizer.schedule": "cosine", "optimizer.name": "lamb"}),
}  # fmt: skip


def sentence(rng: random.Random) -> str:
    """Returns a sentence of words of the corpus."""
    words = [rng.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, ENDS)]
    words[2] += f" of {''.join(rng.choices(SYLLABLES, k=rng.randrange(1, 4)))}"
    return " ".join(words).capitalize() + "."


def _lines(path: pathlib.Path, rows: Sequence[object]) -> None:
    """Writes JSON lines, or tab-separated columns where the rows are tuples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = ["\t".join(r) if isinstance(r, tuple) else json.dumps(r) for r in rows]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")


def write(folder: pathlib.Path) -> None:
    """Writes the corpus, the labelled files of every task and files for `predict`."""
    rng = random.Random(0)
    documents = [" ".join(sentence(rng) for _ in range(rng.randrange(5, 30))) for _ in range(120)]
    for place, text in enumerate(ODD):
        documents.insert(20 * place + 3, text)
    _lines(folder / "corpus.jsonl", [{"text": text} for text in documents])
    plain = "\n\n".join(text for text in documents[:30] if "\n" not in text)
    (folder / "plain.txt").write_text(plain + "\n", encoding="utf-8")
    for split, count in SPLITS:
        _write_split(folder / "tasks", split, count, random.Random(split))
    _lines(folder / "tasks" / "texts.txt", [(sentence(rng),) for _ in range(5)])
    pairs = [{"uid": f"u{n % 2}", "term": "agreement", "good": sentence(rng), "bad": sentence(rng)}
             for n in range(8)]  # fmt: skip
    _lines(folder / "tasks" / "blimp.jsonl", pairs)
    bad = folder / "tasks" / "bad"
    _lines(bad / "ragged.tsv", [("sentence", "label"), ("a text", "good"), ("another",)])
    _lines(bad / "no_column.tsv", [("words", "label"), ("a text", "good")])
    _lines(bad / "one_label.tsv", [("sentence", "label"), ("a text", "good"), ("b", "good")])
    _lines(bad / "empty.tsv", [("sentence", "label"), ("", "good"), ("a text", "bad")])
    (bad / "corpus.jsonl").write_text('{"text": "a text"}\n{"text": 3\n')


def _write_split(folder: pathlib.Path, split: str, count: int, rng: random.Random) -> None:
    def score(n: int) -> str:
        return f"{n % 5}.{rng.randrange(10)}"

    texts = [sentence(rng) for _ in range(count)]
    others = [sentence(rng) for _ in range(count)]
    both = list(zip(texts, others, strict=True))
    two = [LABELS[n % 2] for n in range(count)]
    several = [LABELS[n % 3] for n in range(count)]
    head = ("sentence1", "sentence2")
    tables = {
        "labels": [("sentence", "label"), *zip(texts, several, strict=True)],
        "pairs": [(*head, "label"), *((*pair, two[n]) for n, pair in enumerate(both))],
        "scores": [(*head, "score"), *((*pair, score(n)) for n, pair in enumerate(both))],
        "matches": [head, *both],
        "glue/SST-2": [("sentence", "label"), *((t, str(n % 2)) for n, t in enumerate(texts))],
        "glue/STS-B": [("index", *head, "score"),
                       *((str(n), *pair, score(n)) for n, pair in enumerate(both))],
        "glue/CoLA": [("id", str(n % 2), "*", text) for n, text in enumerate(texts)],
    }  # fmt: skip
    if split == "test":
        tables["glue/CoLA"] = [("index", "sentence"), *((str(n), t) for n, t in enumerate(texts))]
        tables["glue/SST-2"] = tables["glue/CoLA"]
    for name, rows in tables.items():
        _lines(folder / name / f"{split}.tsv", rows)
    names = {"train": "train.tsv", "dev": "dev_matched.tsv", "test": "dev_mismatched.tsv"}
    kinds = ("entailment", "neutral", "contradiction")
    mnli = [(*head, "gold_label"), *((*pair, kinds[n % 3]) for n, pair in enumerate(both))]
    _lines(folder / "glue" / "MNLI" / names[split], mnli)
    words = []
    for n, text in enumerate(texts):
        name = PEOPLE[n % 3]
        rest = [(word, "O") for word in text.strip(".").split()]
        words.append([(name, "B-PER"), ("Smith", "I-PER"), *rest, ("Bonn", "B-LOC"), (".", "O")])
    blocks = ["\n".join("\t".join(pair) for pair in block) for block in words]
    (folder / "entities").mkdir(exist_ok=True)
    (folder / "entities" / f"{split}.conll").write_text("\n\n".join(blocks) + "\n")
    _lines(folder / "words" / f"{split}.jsonl",
           [{"words": [w for w, _ in block], "tags": [f"T{len(w) % 4}" for w, _ in block]}
            for block in words])  # fmt: skip
    _lines(folder / "questions" / f"{split}.json", [_squad(split, texts, others, every=0)])
    _lines(folder / "unanswered" / f"{split}-v2.0.json", [_squad(split, texts, others, every=3)])
    choices = [{"context": text, "choices": [text.split()[-1], *others[n].split()[:2]],
                "label": n % 3, "id": str(n)} for n, text in enumerate(texts)]  # fmt: skip
    _lines(folder / "choices" / f"{split}.jsonl", choices)
    sources = [{"source": text, "target": " ".join(text.split()[:3])} for text in texts]
    _lines(folder / "texts" / f"{split}.jsonl", sources)


def _squad(split: str, texts: Sequence[str], others: Sequence[str], every: int) -> dict:
    """Returns a file of questions in SQuAD's form. every: one in so many has no answer; 0: none."""
    paragraphs = []
    for n, (text, other) in enumerate(zip(texts, others, strict=True)):
        context, answer = f"{other} {text} {other}", " ".join(text.split()[-3:]).strip(".")
        known = [{"text": answer, "answer_start": context.index(answer)}]
        question = {"id": f"{split}{n}", "question": "Who did what?", "answers": known}
        if every:
            none = n % every == 0
            question |= {"is_impossible": none, "answers": [] if none else known}
        paragraphs.append({"context": context, "qas": [question]})
    return {"version": "v2.0", "data": [{"title": "a", "paragraphs": paragraphs}]}


_RUN = "pretrain --config=configs/bert_base.py:smoke --workdir=wrong/run"
_TUNE = "finetune --model=runs/bert --output=wrong/out --config.num_epochs=1"
_LABELS = f"{_TUNE} --task=classification --data=tasks/labels"
# Bad command lines; names that are listed in the messages are frozen with them.
WRONG = {
    "verb": "nosuch",
    "flag_of_another_verb": "export --model=runs/bert --output=wrong/a --lr=1",
    "loose_word": "predict --model=runs/bert hello",
    "second_word": "predict --model=runs/bert --text a b",
    "pretrain_without_flags": "pretrain",
    "no_config_file": "pretrain --config=nosuch.py --workdir=wrong/run",
    "config_argument": "pretrain --config=configs/bert_base.py:big --workdir=wrong/run",
    "unknown_key": f"{_RUN} --config.batchsize=3",
    "key_of_another_type": f"{_RUN} --config.batch_size=many",
    "value_out_of_bounds": f"{_RUN} --config.batch_size=0",
    "mask_rate": f"{_RUN} --config.objective.mask_rate=2",
    "objective_names": f"{_RUN} --config.objective.name=nosuch",
    "objective_of_another_kind": f"{_RUN} --config.objective.name=causal_lm",
    "family": f"{_RUN} --config.family=nosuch",
    "no_data": f"{_RUN} --config.data.path=nosuch",
    "vocabulary_too_small": f"{_RUN} --config.data.path=prepared/bpe --config.model.vocab_size=99",
    "another_run": "pretrain --config=configs/bert_base.py:smoke --workdir=runs/bert "
                   "--config.data.path=prepared/wordpiece",
    "mesh": f"{_RUN} --config.data.path=prepared/wordpiece --config.mesh=rows:2",
    "optimizer_names": f"{_RUN} --config.optimizer.name=nosuch",
    "tokenizer_without_input": "tokenizer --kind=bpe --output=wrong/tok",
    "another_tokenizer": "tokenizer --kind=bpe --vocab_size=280 --input=plain.txt --output=tok/bpe",
    "tokenizer_kinds": "tokenizer --kind=nosuch --output=wrong/tok",
    "prepare_no_input": "prepare --input=nosuch.txt --tokenizer=tok/bpe --output=wrong/prepared",
    "prepare_bad_record": "prepare --input=tasks/bad/corpus.jsonl --tokenizer=tok/bpe "
                          "--output=wrong/prepared --workers=1",
    "evaluate_nothing": "evaluate --model=runs/bert",
    "evaluate_another_tokenizer": "evaluate --model=runs/bert --data=prepared/bpe",
    "predict_nothing": "predict --model=runs/bert",
    "predict_no_model": "predict --model=nosuch --text=a",
    "predict_no_mask": "predict --model=runs/bert --text='The cat saw.'",
    "predict_wrong_task": "predict --model=tuned/qa --text='The cat saw.'",
    "export_format": "export --model=runs/bert --output=wrong/a --format=onnx",
    "export_part": "export --model=runs/bert --output=wrong/a --part=generator",
    "export_over_data": "export --model=runs/bert --output=tasks",
    "inspect_nothing": "inspect nosuch",
    "plan_topology": "plan --config=configs/bert_base.py --topology=abacus-3",
    "task_names": f"{_TUNE} --task=nosuch --data=tasks/labels",
    "strategy_names": f"{_LABELS} --strategy=nosuch",
    "knob_of_another_strategy": f"{_LABELS} --config.strategy.rank=2",
    "knob_of_another_kind": f"{_LABELS} --config.kind.doc_stride=2",
    "rates": f"{_LABELS} --lr=fast",
    "another_finetuning": "finetune --model=runs/bert --task=pair --data=tasks/pairs "
                          "--output=tuned/classification",
    "family_of_another_task": "finetune --model=runs/t5 --task=ner --data=tasks/entities "
                              "--output=wrong/out",
    **{f"finetune_{name}": f"{_TUNE} --task=classification --train=tasks/bad/{name}.tsv"
       for name in ("ragged", "no_column", "one_label", "empty", "nosuch")},
}  # fmt: skip
