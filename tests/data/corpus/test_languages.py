"""Sentences of languages other than English: hard cases, whole text, and `prepare`."""

import sys

import pytest

from bertjax import __main__, errors
from bertjax.data.corpus import languages, sentences
from bertjax.data.prepared import manifest, prepare, store
from tests.helpers import preparing

# "|" marks where the rules must split, and nowhere else.
PROSE = [
    ("de", "Das gilt z.B. f\u00fcr Dr. Ott und Prof. Weber.| Am 3. Mai kam er um ca. 8 Uhr."),
    ("de", "Er wurde am 1. Januar 1871 geboren.| Die 2. Auflage erschien u.a. in Berlin."),
    ("de", "\u00bbKomm her!\u00ab rief er.| \u00bbWohin?\u00ab, fragte sie.| \u201eDorthin.\u201c"),
    ("de", "Kaiser Wilhelm II. reiste ab.| Die Fa. Meier, d.h. der Inhaber, zahlte Nr. 5."),
    ("de", "1. Kapitel"),
    ("fr", "M. Dupont et Mme. Leroy sont venus.| \u00ab O\u00f9 allez-vous ? \u00bb demanda-t-il."),
    ("fr", "\u00ab C'est vrai ! \u00bb s'\u00e9cria Mlle Anne.| Elle partit avec le Dr. Martin."),
    ("fr", "Il dit : \u00ab Venez. \u00bb| Puis il sortit.| Voir p. 12, art. 3 du code."),
    ("fi", "H\u00e4n tuli esim. Oulusta 3. toukokuuta 1990.| Tri Virtanen ym. olivat paikalla."),
    ("fi", "Se on mm. halpa ja ns. hyv\u00e4.| Klo. 8 alkaa.| Ks. sivu 5."),
    ("es", "El Sr. Garc\u00eda y la Sra. Luna van aqu\u00ed.| \u00bfD\u00f3nde?| \u00a1Aqu\u00ed!"),
    ("pl", "Prof. Nowak, np. dr Kowalski, itd. mieszka tu.| Tak jest."),
]  # fmt: skip


@pytest.mark.parametrize(("language", "prose"), PROSE)
def test_hard_cases(language, prose):
    expected = [sentence.strip() for sentence in prose.split("|")]
    assert languages.splitter("rules", language)(prose.replace("|", "")) == expected


def test_english_has_its_own_rules():
    for name, function in sentences.SPLITTERS.items():
        assert languages.splitter(name, languages.ENGLISH) is function


@pytest.mark.parametrize("language", [code for code in languages.LANGUAGES if code != "en"])
def test_every_language_splits_and_loses_nothing(language):
    split = languages.splitter("rules", language)
    text = "Uno due\n tre.\r\n\r\nQuattro! M. Otto. 3. Cinque? \n \n\u4f60\u3002 . . . \u00abSei"
    found = split(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert found[0] == "Uno due tre." and len(found) >= 3  # a blank line ends a sentence
    for empty in ("", " \n\n\t", "\n"):
        assert split(empty) == []


@pytest.mark.parametrize("filler", ["\u00ab ", "\u201e", "' ", ".", "a", "a.b "])
def test_monsters_are_split_in_linear_time(filler):
    found = languages.splitter("rules", "de")(filler * 30_000)
    assert "".join("".join(found).split()) == "".join((filler * 30_000).split())


def test_the_language_decides_the_sentences_and_is_recorded(tmp_path):
    corpus = tmp_path / "text.jsonl"
    corpus.write_text('{"text": "Er kam am 3. Mai um ca. 8 Uhr an. Sie ging."}\n' * 4)
    tokenizer = preparing.train_tokenizer(tmp_path / "tok")

    def run(language, output="out"):
        return preparing.run(
            str(corpus), tokenizer, tmp_path / output, language=language, heldout_fraction=0
        )

    assert run("de")["splits"]["train"]["sentences"] == 8
    assert run("en", "english")["splits"]["train"]["sentences"] == 12
    assert run("de")["options"]["language"] == "de"
    assert manifest.read(tmp_path / "out")["options"]["language_rules"].startswith("sentencex 1.")
    for language in ("en", "fr"):
        with pytest.raises(errors.UserError, match=f"language='de' instead of '{language}'"):
            run(language)
    assert len(store.open_dataset(tmp_path / "out", "train"))


def test_an_interrupted_call_goes_on_in_its_language_only(tmp_path, monkeypatch):
    corpus = tmp_path / "text.txt"
    corpus.write_text("Er kam am 3. Mai an.\n\n" * 40)
    tokenizer = preparing.train_tokenizer(tmp_path / "tok")
    monkeypatch.setattr(prepare, "_totals", lambda *_: 1 / 0)
    flags = {"text_split": "blank", "shard_bytes": 100, "heldout_fraction": 0}
    with pytest.raises(ZeroDivisionError):
        preparing.run(str(corpus), tokenizer, tmp_path / "out", language="de", **flags)
    monkeypatch.undo()
    with pytest.raises(errors.UserError, match="language='de' instead of 'en'"):
        preparing.run(str(corpus), tokenizer, tmp_path / "out", **flags)
    with monkeypatch.context() as other:
        other.setattr(languages, "rules_version", lambda: "sentencex 9.9")
        with pytest.raises(errors.UserError, match=r"'sentencex 1\S* instead of 'sentencex 9.9'"):
            preparing.run(str(corpus), tokenizer, tmp_path / "out", language="de", **flags)
    done = preparing.run(str(corpus), tokenizer, tmp_path / "out", language="de", **flags)
    assert done["splits"]["train"]["sentences"] == 40


def test_data_of_earlier_versions_is_english(tmp_path):
    corpus = tmp_path / "text.txt"
    corpus.write_text("One. Two.\n\nThree. Four.")
    tokenizer = preparing.train_tokenizer(tmp_path / "tok")
    flags = {"text_split": "blank", "heldout_fraction": 0}
    first = preparing.run(str(corpus), tokenizer, tmp_path / "out", **flags)
    file = tmp_path / "out" / manifest.FILE
    content = {key: first[key] for key in first if key not in vars(manifest.FORM)}
    content["options"] = {k: v for k, v in first["options"].items() if k != "language"}
    prepare.schema.write(file, content, manifest.FORM)
    again = preparing.run(str(corpus), tokenizer, tmp_path / "out", **flags)
    assert "language" not in again["options"]
    with pytest.raises(errors.UserError, match="language='en' instead of 'de'"):
        preparing.run(str(corpus), tokenizer, tmp_path / "out", language="de", **flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--language=nb"], "language = 'nb': must be one of en, am, ar, bg"),
        (["--language="], "language = '': must be one of en"),
        (["--language=de", "--splitter=lines"], "language = 'de': cannot be used with the "
                                                "splitter 'lines'"),
    ],
)
def test_impossible_languages_are_one_line(flags, message, tmp_path, capsys):
    common = [f"--input={__file__}", "--tokenizer=none", f"--output={tmp_path / 'out'}"]
    assert __main__.main(["prepare", *common, *flags]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(errors.UserError, match=r"sentencex: pip install 'bertjax\[languages\]'"):
        languages.splitter("rules", "de")
    assert languages.splitter("rules", "en") is sentences.rules
