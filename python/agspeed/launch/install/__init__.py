# SPDX-License-Identifier: Apache-2.0
"""Installs agspeed's wheel on the hosts of a job: on all of them, or on none.

carried_code.py    runs this version's agent on a host without agspeed
installed_wheel.py makes a wheel of an installed agspeed
installer.py       the agent's part: keeps the wheel, calls pip, and takes the change back
installation.py    the launcher's part
"""
