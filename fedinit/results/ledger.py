"""A verdict for every claim of the paper, from summaries alone; the rules are the docstrings of `fedinit.results.judges`.

A claim whose data are absent, or that speaks of a data set that was not run, is "not tested at this scale", with the reason and
what was measured instead. A claim that fails is as good a result as one that holds.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from fedinit.errors import unknown
from fedinit.results import questions  # noqa: F401  (registers its judges)
from fedinit.results.evidence import Evidence, NotTested
from fedinit.results.judges import JUDGES
from fedinit.results.published import CLAIMS, QUESTIONS, claim
from fedinit.results.tables import own_ids

__all__ = ["JUDGES", "NOT_REPRODUCED", "NOT_TESTED", "REPRODUCED", "Evidence", "Verdict", "ledger", "ledger_table", "styled"]

REPRODUCED, NOT_REPRODUCED, NOT_TESTED = "reproduced", "not reproduced", "not tested at this scale"
HOLDS, FAILS = "holds", "does not hold"  # of our own questions, where there is nothing to reproduce


@dataclass(frozen=True)
class Verdict:
    """One line of the ledger. `measured` and `spread` are text with their unit, `seeds` the number of seeds behind them."""

    claim_id: str
    verdict: str
    measured: str
    seeds: int
    spread: str
    note: str


def judge(claim_id: str, evidence: Evidence) -> Verdict:
    """The verdict of one claim by its rule in `JUDGES`; raises InputError for an unknown id."""
    if claim_id not in JUDGES:
        raise unknown("claim", claim_id, JUDGES)
    try:
        holds, *rest = JUDGES[claim_id](evidence)
    except NotTested as no:
        return Verdict(claim_id, NOT_TESTED, no.measured, no.seeds, no.spread, no.reason)
    words = (HOLDS, FAILS) if claim(claim_id) in QUESTIONS else (REPRODUCED, NOT_REPRODUCED)
    return Verdict(claim_id, words[0 if holds else 1], *rest)


def ledger(evidence: Evidence, claims: Iterable[str] | None = None) -> list[Verdict]:
    """The verdicts in the order of `CLAIMS` (or those of `claims`, ids of claims or of `QUESTIONS`)."""
    return [judge(one, evidence) for one in ([c.id for c in CLAIMS] if claims is None else claims)]


def ledger_table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """One row a verdict, indexed by claim id: claim, published, verdict, measured, spread, seeds, note (all text but seeds)."""
    rows = [
        {
            "id": v.claim_id,
            "claim": claim(v.claim_id).text,
            "published": claim(v.claim_id).published,
            "verdict": v.verdict,
            "measured": v.measured,
            "spread": v.spread,
            "seeds": v.seeds,
            "note": v.note,
        }
        for v in verdicts
    ]
    return pd.DataFrame(rows, columns=["id", "claim", "published", "verdict", "measured", "spread", "seeds", "note"]).set_index("id")


@dataclass(frozen=True)
class Shown:
    """A ledger as a notebook shows it."""

    html: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return own_ids(self.html)


def styled(table: pd.DataFrame, links: bool = False) -> Shown:
    """`ledger_table` for a notebook: whole sentences in wrapping columns, verdicts marked; `links` adds each claim's notebook."""
    text = "\n".join(f"{row.Index}: {row.verdict}; {row.measured}" for row in table.itertuples())
    table = table.map(lambda cell: html.escape(str(cell)))
    if links:
        names = [claim(one).notebook for one in table.index]
        table = table.assign(notebook=[f'<a href="{name}.ipynb">{name}</a>' for name in names])
    good, bad = "font-weight: bold", "font-weight: bold; text-decoration: underline"
    look = {REPRODUCED: good, HOLDS: good, NOT_REPRODUCED: bad, FAILS: bad}
    rules = [
        {"selector": "td, th", "props": "text-align: left; vertical-align: top"},
        {"selector": "td", "props": "white-space: normal; max-width: 22em"},
    ]
    return Shown(table.style.map(look.get, subset="verdict").set_table_styles(rules).to_html(table_uuid="t"), text)
