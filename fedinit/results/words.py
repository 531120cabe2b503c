"""Tables of words for a notebook: pandas alone sets text flush right and cuts it at 50 characters."""

from __future__ import annotations

import html

import pandas as pd

from fedinit.results.ledger import Shown


def words(frame: pd.DataFrame, caption: str = "") -> Shown:
    """The frame as a notebook shows it: whole texts, flush left; the same bytes every time."""
    rules = [
        {"selector": "td, th", "props": "text-align: left; vertical-align: top; font-variant-numeric: tabular-nums"},
        {"selector": "caption", "props": "caption-side: top; text-align: left; padding-bottom: .5em"},
    ]
    style = frame.style.format(escape="html").format_index(escape="html").format_index(escape="html", axis=1).set_table_styles(rules)
    if caption:
        style = style.set_caption(html.escape(caption))
    return Shown(style.to_html(table_uuid="t"), frame.to_string(max_colwidth=None))
