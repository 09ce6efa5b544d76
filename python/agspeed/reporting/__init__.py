# SPDX-License-Identifier: Apache-2.0
"""The autotune report: one validated JSON document, and its terminal, HTML and comparison views.

schema.json in this folder is the only definition of the document. The package reads and writes plain dictionaries and
needs neither torch nor the native extension, so a report can be looked at on any machine. It is called `reporting`
because `agspeed.report` is the public function that returns the report of a model.

    parts.py      builds the nested pieces (intervals, candidates, regions) with checked names
    timeline.py   records step times in bounded memory
    model.py      empty_report, validate, load, save, and the Report users hold
    summary.py    the questions a report answers, in sentences; format.py has the numbers in them
    terminal.py   sentences and tables, with colour or as plain text; compare.py puts two reports side by side
    html/         one self-contained HTML file: page, and bench_page for `agspeed comm bench`
    progress.py   what the tuner does, while it does it       environment.py   machine, threads and versions
"""
