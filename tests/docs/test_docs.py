"""The pages of docs/ and the README: their links, commands, paths and blocks of code."""

import fnmatch
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from bertjax import __main__ as command_line
from bertjax import errors, plugins, sharding
from tests.helpers import command_flags, markdown, stand_ins

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = markdown.Page(ROOT / "README.md")
NO_PAGES = ("_build/*", "verbs/*", "extending/examples/*", "README.md")
PAGES = {
    name: markdown.Page(DOCS / name)
    for name in sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    if not any(fnmatch.fnmatch(name, pattern) for pattern in NO_PAGES)
}
TEXTS = {"README.md": README, **{f"docs/{name}": page for name, page in PAGES.items()}}
INCLUDES_README = "start.md"  # its title and text are those of the README
VERB_PAGES = {"verbs/index.md", *(f"verbs/{verb}.md" for verb in command_line.VERBS)}
NUMBERS = {9: "nine", 10: "ten"}
LANGUAGES = {"bash", "python", "text", "json", "toml"}


def test_every_page_is_in_the_table_of_contents():
    listed, todo = {"index.md"}, ["index.md"]
    while todo:
        page = todo.pop()
        for entry in PAGES[page].toctree() if page in PAGES else ():
            pattern = os.path.normpath(pathlib.PurePath(page).parent / f"{entry}.md")
            found = {name for name in {*PAGES, *VERB_PAGES} if fnmatch.fnmatch(name, pattern)}
            assert found, f"docs/{page}: no page {entry}"
            todo += found - listed
            listed |= found
    missing = {*PAGES} - listed
    assert not missing, f"add to the toctree of docs/index.md: {missing}"


@pytest.mark.parametrize("name", [name for name in PAGES if name != INCLUDES_README])
def test_a_page_has_one_title_and_a_paragraph_after_it(name):
    page = PAGES[name]
    assert [level for level, _ in page.titles()].count(1) == 1
    assert page.prose.startswith("# "), f"docs/{name}: the title must be the first line"
    first = page.prose.split("\n\n")[1]
    assert first[0] not in "#|-<", f"docs/{name}: after the title, say what the page gives"


@pytest.mark.parametrize("name", TEXTS)
def test_links_resolve(name):
    for target in TEXTS[name].links():
        path, _, anchor = target.partition("#")
        file = os.path.normpath(ROOT / pathlib.PurePath(name).parent / path) if path else ""
        relative = os.path.relpath(file, DOCS) if path else name.removeprefix("docs/")
        if relative in VERB_PAGES and not anchor:
            continue
        exists = not path or pathlib.Path(file).exists()
        assert exists, f"{name}: links to {target}, which does not exist"
        if name != "README.md":
            assert relative in PAGES, f"{name}: links to {target}; name files as code instead"
        if anchor:
            anchors = (markdown.Page(pathlib.Path(file)) if path else TEXTS[name]).anchors()
            assert anchor in anchors, f"{name}: {target} has no such section, only {anchors}"


@pytest.mark.parametrize("name", PAGES)
def test_blocks_say_whether_they_are_run(name):
    for block in PAGES[name].blocks:
        place = f"docs/{name}:{block.line}"
        if block.language.startswith("{"):
            continue
        assert block.language in LANGUAGES, f"{place}: give the block one of {LANGUAGES}"
        if block.language in ("bash", "python"):
            is_marked = block.is_run or block.comment.startswith("not run: ")
            assert is_marked, f"{place}: put <!-- run --> or <!-- not run: REASON --> above it"
            missing = {*block.given} - {*stand_ins.MAKERS}
            assert not missing, f"{place}: tests/helpers/stand_ins.py has no {missing}"
        else:
            assert not block.comment, f"{place}: only bash and python have a comment"


@pytest.mark.parametrize("name", TEXTS)
def test_commands_exist(name, monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "extending" / "examples")
    for command in TEXTS[name].commands():
        try:
            command_flags.check(command.words, is_whole=command.is_whole)
        except errors.UserError as error:
            pytest.fail(f"{name}:{command.line}: {' '.join(command.words)}: {error}")


@pytest.mark.parametrize(
    "words",
    ["prepare --imput=a", "pretrain --workdir=run", "retrain", "plan --config.batchsize=3",
     "plan --config=configs/bert_base.py --config.batch_size=x", "export --format=onnx --output=a",
     "finetune --output=out --sweep.num_epoch=2,3"],
)  # fmt: skip
def test_a_wrong_command_is_found(words):
    is_whole = words != "pretrain --workdir=run"
    if is_whole:
        with pytest.raises(errors.UserError):
            command_flags.check(["bertjax", *words.split()])
    else:
        command_flags.check(["bertjax", *words.split()], is_whole=False)


@pytest.mark.parametrize("name", TEXTS)
def test_paths_exist(name):
    for line, path in TEXTS[name].paths():
        if path.startswith("docs/_build") or path.removeprefix("docs/") in VERB_PAGES:
            continue
        assert any(ROOT.glob(path.rstrip("/"))), f"{name}:{line}: {path} does not exist"


@pytest.mark.parametrize("name", ["family", "objective"])
def test_the_pages_name_every_part_of_a_plug_in(name):
    text = (DOCS / "extending" / f"{name}.md").read_text()
    parts = getattr(plugins, name.upper())
    assert f"defines {NUMBERS[len(parts)]} names" in " ".join(text.split())
    for part in parts:
        assert f"| `{part}` |" in text, part


def test_the_page_on_sharding_has_the_tables_of_the_code():
    def axes(names):
        return ", ".join(name or "-" for name in names)

    rows = [
        f"| `{pattern.replace('|', chr(92) + '|')}` | {axes(names)} |"
        for pattern, names in sharding.PARAM_AXES
    ]
    rows += [f"| {name} | {axes(names)} |" for name, names in sharding.AXIS_RULES.items()]
    text = (DOCS / "how" / "sharding.md").read_text()
    found = [" ".join(line.split()) for line in text.splitlines() if line.startswith("|")]
    rows = [" ".join(row.split()) for row in rows]
    assert [row for row in found if row in rows] == rows


def test_the_parser_of_pages(tmp_path):
    (tmp_path / "page.md").write_text(
        "# A `title`, (here)\n\nOne `bertjax plan\n--json=a` [link](b.md#c) and `configs/x.py:y`.\n"
        "\n<!-- run -->\n```bash\nA=1 bertjax export --model=a \\\n  --output=b | head\n"
        "cp $REPO/docs/index.md .\n```\n\n    $ bertjax embed ...\n    bertjax is a name\n"
    )
    given = markdown.Block("bash", "", "run, given: package torch org/bert a.tsv", 1)
    assert given.is_run and given.packages == ["torch"] and given.given == ["org/bert", "a.tsv"]
    page = markdown.Page(tmp_path / "page.md")
    assert page.anchors() == {"a-title-here"} and page.links() == ["b.md#c"]
    bash, indented = page.blocks
    assert (bash.language, bash.comment, bash.line) == ("bash", "run", 8)
    assert indented.code.startswith("$ bertjax embed")
    assert [(c.line, c.words, c.is_whole) for c in page.commands()] == [
        (8, ["bertjax", "export", "--model=a", "--output=b"], True),
        (13, ["bertjax", "embed", "..."], False),
        (3, ["bertjax", "plan", "--json=a"], False),
    ]
    assert [path for _, path in page.paths()] == ["configs/x.py", "docs/index.md"]


_RUN = [name for name, page in PAGES.items() if any(block.is_run for block in page.blocks)]
_BASH = "set -euo pipefail\nbertjax() { python -m bertjax \"$@\"; }\n"
# Runs the files named on stdin one after the other, with one set of variables.
_SESSION = """
import sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    with open(line.strip()) as file:
        exec(compile(file.read(), line.strip(), "exec"), names)
    print(DONE, flush=True)
"""
_DONE = "--- the block is done ---"


@pytest.mark.proof
@pytest.mark.parametrize("name", _RUN)
def test_blocks_run(name, tmp_path):
    work, code = tmp_path / "work", tmp_path / "code"
    work.mkdir()
    code.mkdir()
    (code / "session.py").write_text(_SESSION.replace("DONE", repr(_DONE)))
    folder = pathlib.Path(sys.executable).parent  # without resolving links: a virtual environment
    env = os.environ | {"REPO": str(ROOT), "PATH": f"{folder}:{os.environ['PATH']}"}
    env["PYTHONPATH"] = f"{ROOT}:{env.get('PYTHONPATH', '')}".rstrip(":")
    env["XLA_FLAGS"] = ""  # one device, as a reader has
    session = None
    try:
        for block in PAGES[name].blocks:
            if not block.is_run or not all(map(importlib.util.find_spec, block.packages)):
                continue
            for path in block.given:
                if not (work / path).exists():
                    stand_ins.make(path, work)
            file = code / f"line_{block.line}.{block.language}"
            file.write_text((_BASH if block.language == "bash" else "") + block.code + "\n")
            place = f"docs/{name}:{block.line}"
            if block.language == "bash":
                done = subprocess.run(["bash", str(file)], cwd=work, env=env, text=True,
                                      capture_output=True)  # fmt: skip
                assert done.returncode == 0, f"{place}: {done.stdout}\n{done.stderr}"
                continue
            session = session or subprocess.Popen(
                [sys.executable, str(code / "session.py")], cwd=work, env=env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            session.stdin.write(f"{file}\n")
            session.stdin.flush()
            output = []
            while (line := session.stdout.readline()) and line.strip() != _DONE:
                output.append(line)
            assert line, f"{place}: {''.join(output)}"
    finally:
        if session is not None:
            session.kill()
            session.wait()
