# SPDX-License-Identifier: Apache-2.0
"""Stands for kubectl in tests: `kubectl exec -i POD -- WORDS` runs the words here, with the variables of a pod.

The name of the pod may be a key of FAILURES, which are sentences of kubectl.
"""

from __future__ import annotations

import os
import sys

FAILURES = {
    "denied-worker-0": 'Error from server (Forbidden): pods "denied-worker-0" is forbidden: User '
    '"system:serviceaccount:team-a:train-launcher" cannot create resource "pods/exec" in API group "" in the namespace '
    '"team-a"',
    "gone-worker-0": 'Error from server (NotFound): pods "gone-worker-0" not found',
    "starting-worker-0": 'error: unable to upgrade connection: container not found ("worker")',
}


def main() -> None:
    verb, takes_input, pod, separator, *words = sys.argv[1:]
    assert (verb, takes_input, separator) == ("exec", "-i", "--"), sys.argv
    if pod in FAILURES:
        print(FAILURES[pod], file=sys.stderr)
        sys.exit(1)
    variables = {"PATH": "/usr/bin:/bin", "HOME": "/", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    variables |= {name: value for name, value in os.environ.items() if name == "MARK_OF_TEST_JOB"}
    os.execve(words[0], words, variables)


if __name__ == "__main__":
    main()
