# SPDX-License-Identifier: Apache-2.0
"""Which interfaces of a job's hosts reach each other, before its first step.

interfaces.py  the interfaces of a host that carry a job
answer.py      an agent's part: it listens on them, and connects to the other hosts
survey.py      the launcher's part: it collects the answers
decision.py    which interfaces are left out, and the sentences that say why
"""
