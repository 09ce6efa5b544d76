# SPDX-License-Identifier: Apache-2.0
"""Which interfaces of a job's hosts reach each other, before a host runs its first rank.

kernel.py      what the kernel says about an interface
interfaces.py  the interfaces of a host that carry a job
answer.py      an agent's part: it listens on them, and connects to the other hosts
survey.py      the launcher's part: it collects the answers
admission.py   the launcher's part in an elastic job, whose hosts come one after another
decision.py    which interfaces are left out, and the sentences that say why
choice.py      the variables that choose interfaces
"""
