# SPDX-License-Identifier: Apache-2.0
"""GraphSpec: captured graphs as plain data. `export` writes one from a graph, `read` makes a graph of one again."""
