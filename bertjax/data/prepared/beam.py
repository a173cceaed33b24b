"""Runs tasks on Apache Beam: in processes of this machine, or on Dataflow, Flink or Spark.

    runner = beam.runner({"runner": "DataflowRunner", "project": "my-project"}, workers=4)
    for task, result in runner(tasks, make_work, (job,), on_progress=print):
        ...

Stands in for `parallel.run`. The same function processes a task, so the files that it writes have
the same bytes. It must write its results to files: Beam returns none, so nothing is yielded. Beam
runs tasks again that fail, and may run a task twice at the same time.

The pipeline is started in a process of its own, with a session of its own, because Beam's local
runner waits forever if one of its workers dies. Then all of its processes are killed.
"""

import argparse
import functools
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from bertjax import errors
from bertjax.data.prepared import parallel

# NOTE: not "DirectRunner", which may download another runner from the internet.
_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_DEATH = "died"
_USER_ERROR = re.compile(r"\bUserError: ([^\n]+?)(?: \[while running [^\n]*)?(?:\n|\Z)")


def runner(options: Mapping[str, str], workers: int) -> parallel.Runner:
    """Returns the function that runs tasks with Beam.

    options: names of Beam's pipeline options and their values; "true" for options without a value.
    workers: number of processes if Beam's local runner is used, which is the default. Raises
    UserError if Beam is not installed, or if an option is unknown or has a bad value.
    """
    logging.disable(logging.WARNING)  # Beam warns about packages for Google Cloud
    try:
        from apache_beam.options import pipeline_options
    except ImportError as error:
        raise errors.UserError(
            "--runner=beam needs the package apache-beam: pip install 'bertjax[beam]'"
        ) from error
    finally:
        logging.disable(logging.NOTSET)
    parser = _parser(pipeline_options)
    given = [_argument(parser, name, value) for name, value in options.items()]
    defaults = []
    if "runner" not in options:
        defaults = [f"--runner={_LOCAL_RUNNER}"]
        defaults += ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
    return functools.partial(_run, defaults + given)


def _parser(pipeline_options: Any) -> argparse.ArgumentParser:
    """Returns the parser of all of Beam's options."""
    parser = pipeline_options._BeamArgumentParser(
        allow_abbrev=False, add_help=False, exit_on_error=False
    )
    for options in pipeline_options.PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    return parser


def _argument(parser: argparse.ArgumentParser, name: str, value: str) -> str:
    """Returns a command line argument for Beam. Raises UserError if Beam would not accept it."""
    actions = parser._option_string_actions
    if f"--{name}" not in actions:
        known = sorted(flag.removeprefix("--") for flag in actions)
        hint = errors.hint(errors.near(name, known))
        raise errors.UserError(f"--beam.{name}: is not an option of Apache Beam{hint}")
    if actions[f"--{name}"].nargs == 0:
        if value != "true":
            raise errors.UserError(
                f"--beam.{name}={value}: must be true; to turn it off, leave it out"
            )
        return f"--{name}"
    argument = f"--{name}={value}"
    try:
        parser.parse_args([argument])
    except argparse.ArgumentError as error:
        raise errors.UserError(f"--beam.{name}={value}: {error.message}") from error
    return argument


def _run(
    options: list[str],
    tasks: Sequence[Any],
    make_work: Any,
    arguments: tuple[Any, ...],
    *,
    on_progress: Any,
) -> Iterator[tuple[Any, Any]]:
    if not tasks:
        return
    context = multiprocessing.get_context("spawn")
    pipe, child_pipe = context.Pipe()
    process = context.Process(
        target=_run_pipeline, args=(child_pipe, options, list(tasks), make_work, arguments)
    )
    process.start()
    child_pipe.close()
    message = _DEATH
    try:
        message = pipe.recv()
    except EOFError:
        pass
    finally:
        if message:
            _kill_session(process.pid)
        process.join()
        pipe.close()
    if message:
        raise _error(message)
    yield from ()


def _kill_session(pid: int | None) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has ended, or has no session yet
        os.kill(pid, signal.SIGKILL)


def _error(message: str) -> errors.UserError:
    if message == _DEATH:
        return errors.UserError(
            "a worker process of Beam died (out of memory?); run the same command again to resume; "
            "fewer --workers need less memory"
        )
    bad_input = _USER_ERROR.findall(message)
    if bad_input:
        return errors.UserError(bad_input[-1])
    last = message.strip().splitlines()[-1]
    error = errors.UserError(
        f"the Beam pipeline failed ({last[:300]}); run the same command again to resume"
    )
    error.add_note(message)
    return error


def _run_pipeline(
    pipe: connection.Connection,
    options: list[str],
    tasks: list[Any],
    make_work: Any,
    arguments: tuple[Any, ...],
) -> None:
    """Runs the pipeline; sends "" if it succeeded, else a message."""
    os.setsid()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is one process per core
    threading.excepthook = functools.partial(_report_death, pipe)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    try:
        _set_up_logging(local=f"--runner={_LOCAL_RUNNER}" in options)
        import apache_beam

        with apache_beam.Pipeline(options=_pipeline_options(options)) as pipeline:
            (
                pipeline
                | "units" >> apache_beam.Create(tasks)
                | "spread" >> apache_beam.Reshuffle()
                | "process" >> apache_beam.Map(_process, make_work, arguments)
            )
    except (Exception, SystemExit) as error:  # argparse exits
        pipe.send("".join(traceback.format_exception(error)))
    else:
        pipe.send("")


def _set_up_logging(*, local: bool) -> None:
    """Shows the progress of a remote job; hides the log lines of local workers on stderr.

    Errors of the pipeline are not hidden, because they are raised.
    """
    if not local:
        logging.basicConfig(level=logging.INFO)
    elif not os.environ.get("BERTJAX_TRACEBACK"):
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stderr.fileno())


def _pipeline_options(options: list[str]) -> Any:
    from apache_beam.options import pipeline_options

    return pipeline_options.PipelineOptions(options)


def _process(task: Any, make_work: Any, arguments: tuple[Any, ...]) -> None:
    _loaded(make_work, arguments)(task, lambda amount: None)


@functools.lru_cache(1)
def _loaded(make_work: Any, arguments: tuple[Any, ...]) -> parallel.Work:
    """Returns the work function, which each process makes once."""
    return make_work(*arguments)


def _report_death(pipe: connection.Connection, failure: Any) -> None:
    """Sends a message if the thread of Beam's local runner that waits for a worker fails."""
    if failure.thread is not None and failure.thread.name == "run_worker":
        pipe.send(_DEATH)
    else:
        sys.__excepthook__(failure.exc_type, failure.exc_value, failure.exc_traceback)


def _end_with_parent(pipe: connection.Connection) -> None:
    """Kills this process and its workers when the parent process ends."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)
