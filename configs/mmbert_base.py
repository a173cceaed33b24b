"""mmBERT base (22 x 768, 307M), Marone et al., arXiv 2509.06888: three phases, languages by phase.

    bertjax pretrain --config=configs/mmbert_base.py --workdir=run/

A ModernBERT with the tokenizer of Gemma 2 (256,000 pieces). Each language is a source, prepared in
prepared/CODE (ISO 639-3, as in FineWeb2); prepared/others holds all other languages. For other
languages, change FIRST, SECOND and THIRD below.
1. 2.3T tokens of 60 languages and code, in rows of 1,024; 30% of the tokens are masked.
2. 600B tokens of 109 languages and code (the paper counts 110), in rows of 8,192, with other rotary
   bases; 15% are masked.
3. 100B tokens of all 1,833 languages, in which the rate falls by 1 - sqrt; 5% are masked.
A language is read in proportion to its tokens ** 0.7, 0.5 and 0.3 in the three phases, so low-
resource languages are read more and more. All other values are those of the authors' files,
configs/mmBERT-base*.yaml in JHU-CLSP/mmBERT; the languages are those of
statistics/language_counts.csv there. Where the files differ from the paper, this is the paper's
value: 30% in phase 1 and not 25%. Differences: the authors sample by these exponents only the web
text of FineWeb2 and fix the shares of English, code, papers and so on; the batch grows in five
steps, from 512 rows and not 384, since each size is compiled; the 1,724 languages of phase 3 are
one source; the output of attention has no dropout; one final phase replaces three that are merged.
Attention uses the kernel for TPUs; on a GPU, add --config.attention=cudnn.
TPU v5e-256: 49 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib

FIRST = (
    "afr arb azj ben bul ces cmn code dan deu ekk ell eng fas fil fin fra gle glg guj heb hin hrv "
    "hun ind ita jpn kat kaz khk khm kor lit lvs mal mar mkd mya nld nob npi pbt pol por ron rus "
    "sin slk slv spa swe swh tam tel tha tur ukr urd vie xho zsm"
).split()
SECOND = (
    "als amh anp ars ary arz bel bew bod bos cat ceb ckb cym epo eus fry gla gmh gsw hat hif hye "
    "isl jav kan kir kmr lao lat ltz mlt mri mww nap nno nrm ory pan pcm plt rmy snd som srp tat "
    "tgk uzn yue"
).split()
THIRD = ["others"]  # 1,724 languages


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("modernbert", "base", "mlm")

    # Model: section 3.1; the files
    config.model.num_layers = 22
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.intermediate_size = 1152  # width of the gate, and of the part that it multiplies
    config.model.vocab_size = 256_000
    config.model.max_length = 8192  # for the later phases; the first one uses data.length
    config.model.global_every = 3  # layers 0, 3, 6 ... attend to the whole sequence
    config.model.local_window = 128  # tokens that other layers attend to, half on each side
    config.model.global_theta = 10_000.0  # in the first phase
    config.model.local_theta = 10_000.0  # in the first phase
    config.model.activation = "gelu"
    config.model.embedding_dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0  # the authors use 0.1 for the attention output
    config.model.mlp_dropout_rate = 0.0
    config.model.layer_norm_eps = 1e-5
    config.model.init_std = 0.02
    config.model.heads = ("mlm",)

    # Data: the languages of each phase
    config.data.sources = {
        name: {"path": f"prepared/{name}", "weight": float(name in FIRST)}
        for name in (*FIRST, *SECOND, *THIRD)
    }
    config.data.size_exponent = 0.7
    config.eval.max_samples = 500  # of each source

    # Steps: tokens of the paper, batches of the files
    config.data.length = 1024
    config.batch_size = 4608
    config.phases = (
        *config_lib.phases.batch_ramp(512, 4608, num_tokens=60_000_000_000, parts=5),
        {"num_tokens": 2_240_000_000_000},
        {
            "num_tokens": 600_000_000_000,
            "data.length": 8192,
            "micro_batch_size": 256,
            "model.global_theta": 160_000.0,
            "model.local_theta": 160_000.0,
            "objective.mask_rate": 0.15,
            "data.size_exponent": 0.5,
            **{f"data.sources.{name}.weight": 1.0 for name in SECOND},
        },
        {
            "num_tokens": 100_000_000_000,
            "objective.mask_rate": 0.05,
            "data.size_exponent": 0.3,
            **{f"data.sources.{name}.weight": 1.0 for name in THIRD},
            "optimizer.schedule": "wsd",
            "optimizer.decay_steps": 2650,  # the whole phase
            "optimizer.decay_shape": "one_minus_sqrt",
            "optimizer.end_rate": 1.6e-5,  # a fiftieth of the rate
        },
    )
    config.phase2.num_steps = 0  # see config.phases
    config.num_steps = config_lib.phases.total_steps(config)

    # Objective: the files
    config.objective.mask_rate = 0.3  # in the first phase
    config.objective.masking = "token"
    config.objective.mask_token_rate = 0.8  # share of the chosen tokens replaced by the mask
    config.objective.random_token_rate = 0.1  # replaced by a random piece; the rest is unchanged
    config.objective.pair = "none"
    config.objective.cross_documents = False
    config.objective.packing = True  # several documents per row, masked from each other
    config.objective.short_rate = 0.0

    # Optimizer: the files
    config.optimizer.name = "stable_adamw"
    config.optimizer.learning_rate = 8e-4
    config.optimizer.schedule = "constant"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 5723  # 3G tokens, in batches of 512 rows
    config.optimizer.end_rate = 0.0  # the last phase has its own
    config.optimizer.weight_decay = 0.1  # the files do not multiply it by the peak rate: 8e-5
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-8
    config.optimizer.clip_norm = 0.0  # StableAdamW clips its updates instead

    # Hardware
    config.micro_batch_size = 512
    config.topology = "v5e-256"

    return config_lib.choose(config, arg)
