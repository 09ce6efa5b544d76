# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job, for `agspeed run`, on this host and by ssh. It needs neither torch nor the extension.

    launcher (job, agents, output)  --  a pipe or ssh  --  agent (pipes, ranks)  --  keeper  --  ranks

arguments.py    horovodrun's flags, and the meaning of each one here
config_file.py  horovodrun's --config-file
hosts.py        the hosts that the user names, and host files
placement.py    which rank runs on which host, and its variables
job.py          runs a job: the output of its ranks, the first rank that fails, signals
agents.py       the launcher's side of the hosts of a job with a fixed number of ranks
members.py      the same for an elastic job, whose ranks come and go
roster.py       the hosts of an elastic job, which come and go, too
member_host.py  one of them
discovery.py    the user's script that finds them
connection.py   the launcher's connection to one host
starters.py     how an agent is started: as a child process, or by ssh
frames.py       the messages between launcher and agent
description.py  what a host says of itself, and where the ranks meet
agent.py        the process that runs the ranks of one host
member_agent.py its part in an elastic job
launcher_link.py    its side of the connection to the launcher
exchange.py     a job as a call: an argument for all ranks, and the result of each one
pipes.py        what these ranks write
ranks.py        an agent's side of the keeper
attach/         a new launcher takes a job over whose launcher was killed
check/          agspeed run --check: looks at hosts before a job
reach/          which interfaces of the hosts reach each other
install/        agspeed cluster up: installs agspeed's wheel on hosts
keeper.py       the process that starts ranks and ends them
output.py       passes output on, with prefixes and into files
job_key.py      the secret of a job, in memory that only its ranks can read
"""
