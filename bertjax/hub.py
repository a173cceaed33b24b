"""Downloads models from the Hugging Face Hub, and uploads exported folders to it.

    hub.parse("org/name@main")        # Name("org/name", "main"); None for local and gs:// paths
    hub.fetch("org/name")             # the folder in the cache of huggingface_hub
    hub.pinned("org/name")            # "org/name@<commit hash>", after `fetch`
    hub.upload("bert-hf/", "org/name", {}, private=True)

Only safetensors, JSON and tokenizer files are downloaded, never pickles. The cache, the endpoint,
the offline mode (HF_HUB_OFFLINE=1) and the token (HF_TOKEN or `hf auth login`) are those of
huggingface_hub. The token is never printed: messages contain no text of its errors.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bertjax import errors, paths, schema

WEIGHTS = ("model.safetensors", "params.safetensors")  # of a Hugging Face folder, of an artifact
INDEX = "model.safetensors.index.json"
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w.][\w./-]*))?")
_HASH = re.compile("[0-9a-f]{40}")
# Files at the top of a repository, in the folder `tokenizer` of an artifact, and of the modules of
# sentence-transformers, such as 1_Pooling/config.json.
_SMALL_FILES = re.compile(
    r"(tokenizer/)?([^/]+\.json|[^/]+\.model|vocab\.txt|merges\.txt)"
    r"|\d+_\w+/(config\.json|model\.safetensors)|(lora|encoding)\.safetensors"
)
_PICKLES = re.compile(r"[^/]+\.(bin|ckpt|pt|pth|pkl)")
_revisions: dict[str, str] = {}  # {path given to `fetch`: commit hash}


@dataclasses.dataclass(frozen=True)
class _Index(schema.Open):
    """The content of model.safetensors.index.json. weight_map: {tensor name: file name}."""

    weight_map: dict[str, schema.FileName]


class Name(NamedTuple):
    """The name of a model on the Hub. revision: a branch, a tag or a commit hash."""

    repo: str
    revision: str


def parse(path: str | os.PathLike) -> Name | None:
    """Returns the name of a model on the Hub; None if `path` is local or gs://.

    "org/name" is local if there is such a file or folder, or if "org" is the folder of a model, as
    in "run/1000". A path with a final slash is always local.
    """
    match = _NAME.fullmatch(os.fspath(path))
    if match is None or os.path.lexists(path):
        return None
    if os.path.exists(os.path.join(os.path.dirname(match[1]), "config.json")):
        return None
    return Name(match[1], match[2] or "main")


def pinned(path: str | os.PathLike) -> str:
    """Returns "org/name@<commit hash>" if this process fetched `path`; else `path` itself."""
    path = os.fspath(path)
    name = parse(path) if path in _revisions else None
    return f"{name.repo}@{_revisions[path]}" if name else path


def is_pinned(path: str) -> bool:
    """Returns whether `path` is the result of `pinned` for a model of the Hub."""
    match = _NAME.fullmatch(path)
    return bool(match and match[2] and _HASH.fullmatch(match[2]))


def fetch(path: str | os.PathLike, *, with_weights: bool = True) -> epath.Path:
    """Downloads the model `path`, a name for which `parse` is not None; returns its folder.

    The first call for a name prints the revision, and later ones return the same revision. If the
    Hub cannot be reached, uses the copy in the cache. with_weights: whether the weights are needed.
    Raises UserError if there is no such model, it must not be read, or it has no safetensors.
    """
    from huggingface_hub import constants  # here, because only names of the Hub need it

    text, name = os.fspath(path), parse(path)
    assert name is not None, path
    revision = _revisions.get(text, name.revision)
    folder = None
    is_offline = constants.HF_HUB_OFFLINE
    if is_offline or _HASH.fullmatch(revision):
        folder = _cached(name.repo, revision, with_weights)
    if folder is None:
        if is_offline:
            raise errors.UserError(
                f"{text}: not found as a local path or in the cache of the Hub, and HF_HUB_OFFLINE "
                "is set; unset it to download the model, or give the path of a folder"
            )
        folder = _download(text, name.repo, revision, with_weights)
    if text not in _revisions:
        _revisions[text] = folder.name
        errors.tell(f"{text}: is revision {folder.name} of {constants.ENDPOINT}")
    return epath.Path(folder)


def local(path: str | os.PathLike, *, with_weights: bool = True) -> epath.Path:
    """Returns the folder of a model on the Hub, downloaded; for other paths, the path itself."""
    return fetch(path, with_weights=with_weights) if parse(path) else paths.of(path)


def _download(text: str, repo: str, revision: str, with_weights: bool) -> pathlib.Path:
    """Downloads the needed files of a revision; returns their folder, named by the commit hash."""
    import huggingface_hub

    def get(names: Sequence[str]) -> pathlib.Path:
        exact = [re.sub(r"([*?[])", r"[\1]", name) for name in names]
        with _quiet_bars():
            return pathlib.Path(
                huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=exact)
            )

    try:
        with _user_errors(text, "as a local path or "):
            info = huggingface_hub.HfApi().model_info(repo, revision=revision)
            names = [file.rfilename for file in info.siblings or ()]
            small_names = [name for name in names if _SMALL_FILES.fullmatch(name)]
            if with_weights:
                _check_weights(text, names)
            folder = get(small_names)
            if with_weights:
                folder = get([*small_names, *_weights(folder, names)])
        return folder
    except _Unreachable as error:
        folder = _cached(repo, revision, with_weights)
        if folder is None:
            raise
        errors.tell(f"warning: {error}; using the copy in the cache")
        return folder


def _check_weights(text: str, names: Sequence[str]) -> None:
    if {*WEIGHTS, INDEX} & set(names):
        return
    others = [name for name in names if _PICKLES.fullmatch(name)]
    if "adapter_model.safetensors" in names:
        reason = "contains only an adapter of PEFT; merge it into its base model with peft"
    elif others:
        reason = (
            f"has its weights only as {errors.several(others, 3)}, which bertjax never downloads, "
            "because such files can run code; convert them to model.safetensors with transformers, "
            "or look for a revision that has it, such as @refs/pr/1"
        )
    else:
        reason = "contains no model.safetensors; give the name of a model of this kind"
    raise errors.UserError(f"{text}: {reason}")


def _weights(folder: pathlib.Path, names: Sequence[str]) -> list[str]:
    """Returns those of `names` that are the files of the weights, as `hf_weights.find` reads them.

    folder: contains the index of the shards, if there is one.
    """
    single = [name for name in WEIGHTS if name in names]
    return single or sorted(_shards(folder) & set(names))


def _shards(folder: pathlib.Path) -> set[str]:
    """Returns the file names in the index of the shards."""
    return set(schema.read(folder / INDEX, _Index, "name another revision").weight_map.values())


def _cached(repo: str, revision: str, with_weights: bool) -> pathlib.Path | None:
    """Returns the folder of a revision in the cache; None if it is absent or lacks weights."""
    import huggingface_hub

    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "vocab.txt"):
        file = huggingface_hub.try_to_load_from_cache(repo, name, revision=revision)
        if isinstance(file, str):
            break
    else:
        return None
    folder = pathlib.Path(file).parent
    names = [item.name for item in folder.iterdir()]
    if with_weights:
        if not {*WEIGHTS, INDEX} & set(names):
            return None
        if not set(WEIGHTS) & set(names) and not _shards(folder) <= set(names):
            return None  # the download was interrupted
    return folder


def upload(
    folder: str | os.PathLike, repo: str, extra: Mapping[str, str], *, private: bool = False
) -> str:
    """Uploads a local folder to `repo` as one commit; returns the URL. Creates `repo` if needed.

    extra: {name: text} of more files. private: whether a new repository is private. Raises
    UserError if the account may not do this.
    """
    import huggingface_hub
    from huggingface_hub import constants

    root = pathlib.Path(folder)
    content: dict[str, Any] = {name: text.encode() for name, text in extra.items()}
    paths_in = (file for file in sorted(root.rglob("*")) if file.is_file())
    content |= {file.relative_to(root).as_posix(): os.fspath(file) for file in paths_in}
    operations = [
        huggingface_hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=data)
        for name, data in content.items()
    ]
    api = huggingface_hub.HfApi()
    with _user_errors(repo), _quiet_bars():
        api.create_repo(repo, private=private or None, exist_ok=True)
        api.create_commit(repo, operations, commit_message="Upload with bertjax")
    return f"{constants.ENDPOINT}/{repo}"


def check_upload(flag: str, repo: str) -> None:
    """Raises UserError if nothing can be uploaded to `repo`, the value of --FLAG.

    Call it before the work starts, so that the work is not lost to this error.
    """
    import huggingface_hub
    from huggingface_hub import constants

    match = _NAME.fullmatch(repo)
    if match is None or match[2]:
        raise errors.UserError(f"--{flag}={repo}: give ORG/NAME, or USER/NAME")
    if constants.HF_HUB_OFFLINE:
        raise errors.UserError(f"--{flag}={repo}: HF_HUB_OFFLINE is set; unset it to upload")
    if not huggingface_hub.get_token():
        raise errors.UserError(
            f"--{flag}={repo}: needs a token that may write; run `hf auth login` or set HF_TOKEN"
        )


class _Unreachable(errors.UserError):
    """Raised if the Hub does not answer, or answers with an error of its own."""


@contextlib.contextmanager
def _user_errors(text: str, no_path: str = "") -> Iterator[None]:
    """Converts errors of huggingface_hub about `text` to UserErrors.

    no_path: the start of the list of places where a model was looked for.
    """
    try:
        yield
    except errors.UserError:
        raise
    except Exception as error:
        raise _user_error(text, error, no_path) from error


def _user_error(text: str, error: Exception, no_path: str) -> Exception:
    """Returns the UserError for an error of huggingface_hub; the error itself if it is a bug."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub_errors

    login = "log in with `hf auth login`, or set HF_TOKEN"
    if isinstance(error, hub_errors.LocalEntryNotFoundError):  # a failed download
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    status = getattr(getattr(error, "response", None), "status_code", None)
    where, kind = constants.ENDPOINT, type(error)
    if isinstance(error, hub_errors.GatedRepoError):
        return errors.UserError(
            f"{text}: is gated; accept its conditions at {where}/{text.partition('@')[0]} and "
            f"{login}"
        )
    if isinstance(error, hub_errors.RevisionNotFoundError):
        return errors.UserError(
            f"{text}: {where} has no such revision of this model; check the part after the @"
        )
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        return errors.UserError(
            f"{text}: not found {no_path}at {where} with the rights of this account; check the "
            f"name, or {login}"
        )
    if isinstance(error, hub_errors.HFValidationError):
        return errors.UserError(f"{text}: is not a valid name on the Hub; check the name")
    if status in (401, 403):
        return errors.UserError(
            f"{text}: {where} refused the request (status {status}); use a token with this right: "
            f"{login}"
        )
    if status is not None:
        return _Unreachable(f"{text}: {where} answered with status {status}; try again later")
    is_network = kind.__module__.split(".")[0] in ("httpx", "httpx2", "requests", "urllib3")
    if is_network or isinstance(error, ConnectionError | hub_errors.LocalEntryNotFoundError):
        return _Unreachable(
            f"{text}: not found {no_path}at {where}, which cannot be reached "
            f"({kind.__name__}); check the network and the name"
        )
    return error


@contextlib.contextmanager
def _quiet_bars() -> Iterator[None]:
    """Hides the progress bars of huggingface_hub if stderr is not a terminal."""
    from huggingface_hub import utils

    hides = not sys.stderr.isatty() and not utils.are_progress_bars_disabled()
    if hides:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if hides:
            utils.enable_progress_bars()
