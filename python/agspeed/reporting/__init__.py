# SPDX-License-Identifier: Apache-2.0
"""The autotune report: one validated JSON document, and its terminal, HTML and comparison views.

schema.json in this folder is the only definition of the document. The package reads and writes plain dictionaries and
needs neither torch nor the native extension, so a report can be viewed on any machine. The package is called
`reporting`, because `agspeed.report` is the public function that returns the report of a model.

    parts.py      builds the nested pieces (intervals, candidates, regions) with checked names
    timeline.py   records step times in bounded memory
    model.py      empty_report, validate, load, save, and the Report class for users
    summary.py    answers the questions of a report in sentences; format.py formats their numbers
    terminal.py   prints sentences and tables, in colour or as plain text; compare.py compares two reports
    html/         writes one self-contained HTML file: page, and bench_page for `agspeed comm bench`
    progress.py   shows what the tuner is doing               environment.py   machine, threads and versions
"""
