"""The house rules of the code, read out of its source: who imports whom, and what nobody writes."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "bertjax"
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# From the ground up. A module imports from the lines below its own, never from its own; the modules
# of one folder may import each other. A folder stands for all of its modules.
LAYERS = (
    {"errors"},
    {"html_tables", "paths", "profiler", "progress"},
    {"files"},
    {"schema"},
    {"hub"},
    {"checksums", "data", "device_groups", "hashing", "plot", "preservation", "runtime"}
    | {"sharding", "trackers"},
    {"checkpoint", "metrics", "models", "optimizer"},
    {"objectives", "phases", "protocols", "show", "step"},
    {"mixing", "plugins"},
    {"objective_choice"},
    {"config"},
    {"config_help", "evaluate", "training_data", "workdir"},
    {"experiment"},
    {"artifact", "run_log"},
    {"column_flags", "corpus_flags", "job_flags", "planning"}
    | {"run_header", "run_starts", "step_log"},
    {"inference", "train"},
    {"reporting"},
    {"finetuning"},
    {"__init__"},
    {"commands"},
    {"help_texts"},
    {"__main__"},
)
HEAVY = {
    "jax", "flax", "optax", "torch", "transformers", "tensorflow", "tensorflow_datasets", "pyarrow"
}  # fmt: skip


def _room(module: str) -> str:
    return module.split(".")[0]


def _level(module: str) -> int:
    for level, rooms in enumerate(LAYERS):
        if _room(module) in rooms:
            return level
    raise AssertionError(f"bertjax/{module}: give it a line of LAYERS in {__file__}")


def _tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(), str(FILES[module]))


def _top_level(tree: ast.Module):
    """Statements that run at import: not those in functions, nor for the type checker alone."""
    todo = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        todo.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def _imports(nodes) -> set[str]:
    """Dotted names: `from bertjax.data.prepared import store` is "bertjax.data.prepared.store"."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _own(names: set[str]) -> set[str]:
    """Which of them are modules of the package, by their names in FILES."""
    own = set()
    for name in names:
        parts = name.split(".")[1:] if name.split(".")[0] == "bertjax" else None
        if parts is None:
            continue
        for stop in range(len(parts), -1, -1):
            inner = ".".join([*parts[:stop], "__init__"])
            if ".".join(parts[:stop]) in FILES or inner in FILES:
                own.add(".".join(parts[:stop]) if ".".join(parts[:stop]) in FILES else inner)
                break
    return own


def _libraries(nodes) -> set[str]:
    return {name.split(".")[0] for name in _imports(nodes)}


@pytest.mark.parametrize("module", FILES)
def test_imports_come_from_the_layers_below(module):
    level, room = _level(module), _room(module)
    for other in _own(_imports(ast.walk(_tree(module)))):
        if other == module or other.endswith(f"{room}.__init__"):
            continue
        allowed = _level(other) < level or (_room(other) == room and "." in module)
        if module == "__init__":  # its imports wait for the first call
            allowed = True
        assert allowed, f"bertjax/{module} imports {other}, which is not below it"


def test_rooms_do_not_import_in_a_circle():
    seen, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path, module])
        if module in seen:
            return
        path.append(module)
        for other in sorted(_own(_imports(_top_level(_tree(module)))) - {module}):
            if not other.endswith("__init__"):
                visit(other)
        path.pop()
        seen.add(module)

    for module in FILES:
        visit(module)


@pytest.mark.parametrize("room", ["models", "objectives", "step", "data"])
def test_the_middle_rooms_know_only_what_is_below_them(room):
    known = {
        "data": {"data", "errors", "files", "html_tables", "hub", "paths", "schema"},
        "models": {"models", "device_groups", "errors", "hashing", "schema", "sharding"},
        "objectives": {"objectives", "errors", "hashing", "metrics", "data"},
        "step": {"device_groups", "metrics", "sharding"},
    }[room]
    for module in FILES:
        if _room(module) == room:
            rooms = {_room(other) for other in _own(_imports(ast.walk(_tree(module))))}
            assert rooms <= known | {"__init__"}, f"bertjax/{module} knows {rooms - known}"


def test_commands_do_not_import_each_other():
    for module in FILES:
        if module.startswith("commands."):
            own = _own(_imports(ast.walk(_tree(module))))
            assert not [other for other in own if other.startswith("commands.")], module


def test_only_models_import_linen():
    for module in FILES:
        names = _imports(ast.walk(_tree(module)))
        linen = {n for n in names if n.startswith("flax.linen") or n in ("flax", "flax.nnx")}
        assert not linen or _room(module) == "models", f"bertjax/{module} imports {linen}"


def test_data_calls_numpy_and_never_jax():
    for module in FILES:
        if _room(module) == "data":
            assert not _libraries(ast.walk(_tree(module))) & {"jax", "flax", "optax"}, module


@pytest.mark.parametrize("module", FILES)
def test_no_module_imports_another_framework_at_its_top(module):
    found = _libraries(_top_level(_tree(module)))
    assert not found & {"torch", "transformers", "tensorflow", "tensorflow_datasets"}


@pytest.mark.parametrize("module", FILES)
def test_no_default_is_hidden_in_a_get(module):
    for node in ast.walk(_tree(module)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = ast.unparse(node.func.value)
        default = node.func.attr == "get" and len(node.args) == 2
        hidden = default and re.search(r"\b_?config\b|\bconf\b|\bcfg\b", owner)
        assert not hidden, f"{FILES[module]}:{node.lineno}: {ast.unparse(node)}"
        assert not (node.func.attr == "pmap" and owner == "jax"), "pmap"


@pytest.mark.parametrize("module", FILES)
def test_nothing_outside_an_objective_names_its_fields(module):
    """Other code reads them through `objectives/common/hooks.py`."""
    if _room(module) == "objectives":
        return
    allowed = {"name", "items", "to_dict", "update"}
    if module == "commands.evaluate":
        allowed.add("mask_rate")  # its flag --mask_rate
    for node in ast.walk(_tree(module)):
        code = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Compare) else ""
        field = re.search(r"config\.objective\.(\w+)|^'(\w+)' in config\.objective$", code)
        found = set(field.groups()) - {None} if field else set()
        assert found <= allowed, f"{FILES[module]}:{node.lineno}: {code}"


@pytest.mark.parametrize("module", FILES)
def test_every_module_says_what_it_is(module):
    assert ast.get_docstring(_tree(module)), f"bertjax/{module}"


def test_no_file_is_long_or_called_utils():
    for folder in ("bertjax", "configs", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            lines = len(path.read_text().splitlines())
            assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines"
            assert path.stem not in ("utils", "util", "helpers", "common"), path


@pytest.mark.parametrize(
    "code",
    [
        "import bertjax",
        "from bertjax import __main__; assert __main__.main(['--help']) == 0",
        "import bertjax.commands.tokenizer",
        "import bertjax.commands.prepare",
    ],
)
def test_starts_without_what_it_does_not_need(code):
    check = f"import sys; {code}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "", f"{code} imports {done.stdout.splitlines()[-1]}"
