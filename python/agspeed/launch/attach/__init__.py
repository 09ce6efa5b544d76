# SPDX-License-Identifier: Apache-2.0
"""A new launcher takes an elastic job over whose launcher was killed, from the agents that have kept the members.

    new launcher  --  a pipe or ssh  --  relay  --  unix socket  --  agent that was left  --  members

identity.py  the name of a job, and the flags for it
point.py     the socket of an agent, which is open to its own user alone
callers.py   an agent's side: which new launchers it takes, and which it refuses
relay.py     a new agent that finds an earlier one of its job on its host
report.py    what an agent says to the launcher that it takes; pure
takeover.py  the launcher's side: waits until all hosts and members have reported
"""
