# SPDX-License-Identifier: Apache-2.0
"""Parses the command line, runs one subcommand, and turns errors into a sentence and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence

from agspeed.cli import bench, cache, comm, config, console, doctor, nccl, netbed, report, run, version
from agspeed.cluster import command as cluster
from agspeed.errors import AgspeedError, UserError
from agspeed.reporting import format as fmt

__all__ = ["EXIT_BAD_INPUT", "EXIT_FOUND_PROBLEMS", "EXIT_INTERRUPTED", "EXIT_OK", "main"]

EXIT_OK = 0
EXIT_FOUND_PROBLEMS = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

_EXIT_CODES = """exit codes:
  0    the command succeeded
  1    the command found problems (doctor, cache verify, cache import, comm, netbed), or it failed
  2    wrong arguments, settings or files; nothing was changed
  130  interrupted"""

_COMMANDS = (doctor, report, cache, config, bench, run, cluster, comm, nccl, netbed)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `agspeed <argv>` and returns the exit code."""
    console.prepare_streams()
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return EXIT_OK  # the reader (`head`, a pager) has closed the pipe
    except UserError as error:
        return _failed(error, EXIT_BAD_INPUT)
    except (AgspeedError, OSError) as error:
        return _failed(error, EXIT_FOUND_PROBLEMS)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        console.finish_streams()


def _dispatch(arguments: list[str]) -> int:
    # `bench` passes all its arguments, including options, to another program. argparse cannot express that.
    if arguments[:1] == ["bench"]:
        return bench.run(arguments[1:])
    parser = _parser()
    try:
        parsed, unknown = parser.parse_known_args(arguments)
    except SystemExit as ended:  # after --help, or after an error in the arguments
        return int(ended.code or 0)
    if unknown:
        command = "agspeed" if arguments[0].startswith("-") else f"agspeed {arguments[0]}"
        raise UserError(f"{command} does not take {' '.join(unknown)}; `{command} --help` lists what it takes.")
    if parsed.version:
        return version.run(parsed.verbose)
    if parsed.run is None:
        parser.print_help()
        return EXIT_OK
    return int(parsed.run(parsed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agspeed",
        description="Faster PyTorch training with one line; this command looks after its reports, caches and settings.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version; with --verbose, the build as well")
    parser.add_argument("--verbose", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser


def _failed(error: Exception, code: int) -> int:
    with contextlib.suppress(OSError):
        print(fmt.printable(f"agspeed: {error}"), file=sys.stderr)
    return code
