# SPDX-License-Identifier: Apache-2.0
"""Parses the command line, runs one subcommand, and turns what went wrong into a sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from agspeed.cli import bench, cache, comm, config, doctor, nccl, netbed, report, run, version
from agspeed.errors import AgspeedError, UserError

__all__ = ["EXIT_BAD_INPUT", "EXIT_FOUND_PROBLEMS", "EXIT_INTERRUPTED", "EXIT_OK", "main"]

EXIT_OK = 0
EXIT_FOUND_PROBLEMS = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

_EXIT_CODES = """exit codes:
  0    everything that was asked for was done
  1    it was done and found problems (doctor, cache verify, cache import, comm, netbed), or it failed
  2    wrong arguments, settings or files; nothing was changed
  130  interrupted"""

_COMMANDS = (doctor, report, cache, config, bench, run, comm, nccl, netbed)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `agspeed <argv>` and returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"agspeed: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (AgspeedError, OSError) as error:
        return _failed(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    # `bench` hands its arguments on unread, options included, which argparse cannot express.
    if arguments[:1] == ["bench"]:
        return bench.run(arguments[1:])
    parser = _parser()
    parsed = parser.parse_args(arguments)
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


def _failed(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader (`head`, a pager) has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    print(f"agspeed: {error}", file=sys.stderr)
    return EXIT_FOUND_PROBLEMS
