# SPDX-License-Identifier: Apache-2.0
"""`agspeed run --check`: looks at the hosts of a job before it starts, through the agents that would run its ranks.

facts.py     what a host says of itself; the agent's part
findings.py  what would keep a job from running on these hosts, with remedies; pure
look.py      asks all hosts, and prints the table and the findings; the launcher's part
"""
