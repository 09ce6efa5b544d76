# SPDX-License-Identifier: Apache-2.0
"""Kept results: the figures of RESULTS*.md as data in `benchmarks/results`, and the tables made from them.

`files` reads and checks the JSON, `values` shows figures by templates, `tables` makes a table, and `runs` turns the
result of a run into a kept one. `benchmarks.results` is the command.
"""
