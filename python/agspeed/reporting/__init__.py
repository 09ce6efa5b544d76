# SPDX-License-Identifier: Apache-2.0
"""The autotune report: one validated JSON document, and its terminal, HTML and comparison views.

schema.json in this folder is the only definition of the document. The package reads and writes plain dictionaries and
needs neither torch nor the native extension, so a report can be looked at on any machine. It is called `reporting`
because `agspeed.report` is the public function that returns the report of a model.

    parts.py      builds the nested pieces (intervals, candidates, regions) with checked names
    timeline.py   records step times in bounded memory
    model.py      empty_report, validate, load, save, and the Report users hold
    text.py       sentences and tables as plain text          terminal.py   the same with colour, and progress
    html.py       one self-contained HTML file (page.html.j2, page.css, page.js, charts.py, svg.py)
    compare.py    two reports side by side
"""
