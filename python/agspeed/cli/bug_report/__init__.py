# SPDX-License-Identifier: Apache-2.0
"""The text that `agspeed doctor --report` writes, for the bug reports of users.

facts.py collects the sections, redaction.py removes names, paths, addresses and secrets from every value, and
document.py puts both into one Markdown text.
"""

from agspeed.cli.bug_report.document import text, write

__all__ = ["text", "write"]
