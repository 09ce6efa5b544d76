# SPDX-License-Identifier: Apache-2.0
"""GraphSpec: captured graphs as plain data. `export` writes a GraphSpec from a graph, `read` rebuilds the graph."""
