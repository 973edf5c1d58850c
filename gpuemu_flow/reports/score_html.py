"""Write scores as a self-contained HTML file that looks like the report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from gpuemu_flow.plain_text import inert_markup
from gpuemu_flow.reports.html_writer import FOLDER, clean

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Scores</title>
<style>{{ style | safe }}</style>
</head>
<body>
<main>
<h1>Scores</h1>
<p>{{ summary }}</p>
<table>
<caption>Problems and candidates</caption>
<thead><tr>{% for cell in head %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
</main>
</body>
</html>
"""


def scores_to_html(head: Sequence[str], rows: Sequence[Sequence[str]], summary: str) -> str:
    """Return a page with a table of scores, in which all texts are escaped."""
    template, style = _parts()
    plain = [[clean(cell) for cell in row] for row in rows]
    page: str = template.render(head=head, rows=plain, summary=summary, style=style)
    return inert_markup(page)


@cache
def _parts() -> tuple[Any, str]:
    import jinja2  # noqa: PLC0415 - only for HTML

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    return environment.from_string(_PAGE), style
