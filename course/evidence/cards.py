"""Evidence cards: what our sources say about each system, field by field, what the course builds of it, and one page to browse them.

The cards are cards.toml, written by hand; here they are read, checked and shown.
"""

import html
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Mapping, Sequence

from course.evidence.claims import FIELDS, Claim, Conflict, EvidenceTable, conflicts

STATUSES = ("done", "in part", "card only", "not done")
LABORATORIES = {
    "OpenAI": "OpenAI", "Anthropic": "Anthropic", "Google DeepMind": "Google DeepMind",
    "method": "a method, of no one laboratory", "definition": "a definition of source C",
}  # fmt: skip
SOURCES = {
    "A": "a survey of OpenAI, Anthropic and Google DeepMind, from preferences to environments; verified through 2026-07-19; by section",
    "B": "a technical survey of reinforcement learning for large language models; by line of its text",
    "C": "a chapter of definitions of post-training; by tag of the definition",
}
SILENT = {field: "Our sources do not say." for field in FIELDS} | {"unknowns": "The rows that are U."}
_PLACE = r"A (preamble|\d+(\.\d+)?)|B line \d+|C ftip-[0-9A-Z]{4}"


@dataclass(frozen=True)
class Card:
    """One system: what is known of it, by field, and where the course does what `works` says."""

    name: str
    laboratory: str
    year: str  # as the source gives it; empty if it gives none
    source: str
    level: int
    mechanisms: tuple[str, ...]
    table: EvidenceTable
    works: str
    status: str
    where: tuple[str, ...]  # notebook § section, room; empty if nothing is there yet
    tests: tuple[str, ...]
    missing: str = ""  # of a card that is not done

    def __post_init__(self) -> None:
        if self.laboratory not in LABORATORIES:
            raise ValueError(f"laboratory of {self.name} must be one of {', '.join(LABORATORIES)}; got {self.laboratory!r}")
        if self.status not in STATUSES:
            raise ValueError(f"status of {self.name} must be one of {', '.join(STATUSES)}; got {self.status!r}")
        if not self.mechanisms or not self.table.claims:
            raise ValueError(f"{self.name} must have a mechanism and a claim; got {self.mechanisms} and {self.table.claims}")
        whole = self.status in ("done", "card only")
        if whole == bool(self.missing):
            raise ValueError(
                f"missing of {self.name} must be said unless it is done or a card only; got {self.missing!r} with {self.status!r}"
            )
        if whole and not (self.tests and any(" § " in place for place in self.where)):
            raise ValueError(
                f"{self.name} must have a section of a notebook and a test to be {self.status}; got {self.where}, {self.tests}"
            )
        if (self.status == "not done") == bool(self.where):
            raise ValueError(f"where of {self.name} must be given unless it is not done; got {self.where} with {self.status!r}")
        for claim in self.table.claims:
            if claim.place and not all(re.fullmatch(_PLACE, place) for place in claim.place.split(", ")):
                raise ValueError(f"place of {self.name} must be 'A 3.3', 'B line 31' or 'C ftip-005A'; got {claim.place!r}")

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        return conflicts(self.table)

    @property
    def labels(self) -> dict[str, str]:
        """Field -> the strongest label of its row."""
        return {field: self.table.label(field) for field in FIELDS}


def read_card(row: Mapping[str, Any]) -> Card:
    """A card from its table in cards.toml. Raises ValueError for a claim of another form, TypeError for a key that no card has."""
    given = dict(row)
    claims = tuple(_claim(field, parts) for field, rows in given.pop("fields").items() for parts in rows)
    lists = {key: tuple(given.pop(key)) for key in ("mechanisms", "where", "tests")}
    return Card(**given, **lists, table=EvidenceTable(claims))


def _claim(field: str, parts: Sequence[Any]) -> Claim:
    if len(parts) not in (3, 4):
        raise ValueError(f"a claim of {field} must be [label, place | premises | '', text] and perhaps a quantity; got {parts}")
    label, support, text, *about = parts
    support = {"premises": tuple(support)} if isinstance(support, list) else {"place": support}
    return Claim(field, text, label, **support, about=about[0] if about else "")


def load_cards() -> tuple[Card, ...]:
    """All cards, in the order of the sources. Raises ValueError if one does not hold together or two have one name."""
    cards = tuple(map(read_card, tomllib.loads(files("course.evidence").joinpath("cards.toml").read_text("utf-8"))["card"]))
    twice = [name for name, count in Counter(card.name for card in cards).items() if count > 1]
    if twice:
        raise ValueError(f"names of cards must differ; got {twice} more than once")
    return cards


def label_counts(cards: Sequence[Card]) -> dict[str, dict[str, int]]:
    """Field -> label -> number of cards whose strongest label of that field it is."""
    return {field: {label: sum(card.labels[field] == label for card in cards) for label in "DIU"} for field in FIELDS}


# ---------------------------------------------------------------- the page


def page(cards: Sequence[Card]) -> str:
    """One HTML page with all cards, which needs nothing else: filters by laboratory, mechanism, label and status, and a text search.

    Without scripts all cards are shown. Labels are letters as well as colours.
    """
    found = sum(len(card.conflicts) for card in cards)
    statuses = Counter(card.status for card in cards)
    done, in_part, only, none = (statuses[status] for status in STATUSES)
    mechanisms = Counter(mechanism for card in cards for mechanism in card.mechanisms)
    counts = f"In the course: {done} in full, {in_part} in part, {none} not; {only} as a card only."
    options = {
        "laboratory": {name: text for name, text in LABORATORIES.items() if any(card.laboratory == name for card in cards)},
        "mechanism": {name: f"{name} ({count})" for name, count in sorted(mechanisms.items(), key=lambda item: item[0].lower())},
        "label": {"D": "D disclosed", "I": "I inferred", "U": "U unknown"},
        "field": {field: _words(field) for field in FIELDS},
        "status": {status: status for status in STATUSES},
    }
    told = {"field": "of the row", "status": "the course"}
    filters = "".join(
        f'<label>{told.get(name, name)} <select id="{name}"><option value="">any</option>'
        + "".join(f'<option value="{_e(value)}">{_e(text)}</option>' for value, text in values.items())
        + "</select></label>"
        for name, values in options.items()
    )
    head = "".join(f'<th scope="col"><span>{_words(field)}</span></th>' for field in FIELDS)
    return _PAGE.format(
        style=_STYLE, script=_SCRIPT, filters=filters, head=head, total=len(cards),
        summary=f"{len(cards)} systems and methods. {counts} Conflicts between sources: {found}; all values stand.",
        sources="".join(f"<li><b>{name}</b> {_e(text)}</li>" for name, text in SOURCES.items()),
        rows="".join(map(_overview_row, cards)), cards="".join(map(_article, cards)),
    )  # fmt: skip


def _overview_row(card: Card) -> str:
    at_odds = {conflict.field for conflict in card.conflicts}
    cells = "".join(f'<td class="{label}">{label}{"≠" if field in at_odds else ""}</td>' for field, label in card.labels.items())
    return (
        f'<tr {_data(card)}><th scope="row"><a href="#{_id(card)}">{_e(card.name)}</a></th><td>{card.level}</td>{cells}'
        f'<td class="status">{card.status}</td></tr>'
    )


def _article(card: Card) -> str:
    at_odds = {(conflict.field, conflict.about) for conflict in card.conflicts}
    fields = "".join(
        f'<tr><th scope="row">{_words(field)}</th><td>{"".join(_shown(c, (field, c.about) in at_odds) for c in card.table.row(field))}</td></tr>'
        for field in FIELDS
    )
    about = " · ".join(filter(None, (LABORATORIES[card.laboratory], card.year, f"source {card.source}", f"level {card.level}")))
    places = "".join(f"<li>{_e(place)}</li>" for place in (*card.where, *card.tests))
    lack = f"<p><b>{'Not there yet' if card.where else 'Not done'}:</b> {_e(card.missing)}.</p>" if card.missing else ""
    return (
        f'<article id="{_id(card)}" {_data(card)}><h2>{_e(card.name)}</h2><p class="about">{_e(about)}</p>'
        f'<p class="tags">{"".join(f"<span>{_e(m)}</span>" for m in card.mechanisms)}</p>'
        f'<table class="fields"><tbody>{fields}</tbody></table>'
        f"<h3>What the course builds of it: {card.status}</h3><p>{_e(card.works)}</p>{lack}"
        + (f"<ul>{places}</ul>" if places else "")
        + "</article>"
    )


def _shown(claim: Claim, at_odds: bool) -> str:
    support = claim.place or "; ".join(claim.premises)
    return (
        f'<p{" class=odds" if at_odds else ""}><b class="{claim.label}">{claim.label}</b> '
        + ("<em>Sources disagree.</em> " if at_odds else "")
        + (f"{_e(claim.about)}: " if claim.about else "")
        + _e(claim.text or SILENT[claim.field])
        + (f" <cite>{'from: ' if claim.premises else ''}{_e(support)}</cite>" if support else "")
        + "</p>"
    )


def _data(card: Card) -> str:
    """What the filters read; the text that the search reads is the element's own."""
    labels = " ".join(f"{field}:{label}" for field, label in card.labels.items())
    return f'data-laboratory="{_e(card.laboratory)}" data-mechanisms="{_e("|".join(card.mechanisms))}" data-labels="{labels}" data-status="{card.status}"'


def _id(card: Card) -> str:
    return re.sub(r"[^a-z0-9]+", "-", card.name.lower()).strip("-")


def _words(field: str) -> str:
    return {"sft_data": "SFT data"}.get(field, field.replace("_", " "))


def _e(text: str) -> str:
    return html.escape(text, quote=True)


_STYLE = """
:root{--D:#0072B2;--I:#E69F00;--U:#e4e4e4}
*{box-sizing:border-box}
body{font:16px/1.45 system-ui,sans-serif;color:#222;background:#fff;margin:0 auto;padding:1rem;max-width:76rem}
h1{margin:.2rem 0}h2{margin:0}h3{margin:1rem 0 .2rem;font-size:1rem}
form{background:#fff;border-bottom:1px solid #8a8a8a;padding:.6rem 0;display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:end}
label{display:flex;flex-direction:column;font-size:.85rem}
select,input,button{font:inherit;padding:.2rem .4rem;max-width:15rem;height:2.1rem}
:focus-visible{outline:3px solid #D55E00;outline-offset:2px}
.scroll{overflow-x:auto}
table{border-collapse:collapse}
.overview{font-size:.9rem;margin:1rem 0}
.overview td{text-align:center;border:1px solid #fff;min-width:2rem;padding:.1rem .3rem}
.overview th[scope=row]{text-align:left;font-weight:normal;padding-right:.8rem}
.overview thead th{vertical-align:bottom;font-weight:normal}
.overview thead span{writing-mode:vertical-rl;transform:rotate(180deg)}
.overview td.status{white-space:nowrap;text-align:left}
.D{background:var(--D);color:#fff}.I{background:var(--I);color:#000}.U{background:var(--U);color:#222}
article{border:1px solid #8a8a8a;border-radius:.4rem;padding:1rem;margin:1rem 0;scroll-margin-top:12rem}
.about{margin:.1rem 0;color:#444}.tags{margin:.4rem 0;display:flex;flex-wrap:wrap;gap:.3rem}
.tags span{border:1px solid #8a8a8a;border-radius:1rem;padding:0 .6rem;font-size:.85rem}
.fields{width:100%}.fields th{text-align:left;vertical-align:top;width:9rem;padding:.35rem .6rem .35rem 0;border-top:1px solid #ddd}
.fields td{border-top:1px solid #ddd;padding:.2rem 0}.fields p{margin:.15rem 0}
.fields b{display:inline-block;width:1.5rem;text-align:center;border-radius:.2rem}
.odds{border-left:4px solid #D55E00;padding-left:.5rem}
cite{color:#444;font-size:.9rem}cite::before{content:"["}cite::after{content:"]"}
[hidden]{display:none}
@media (min-width:40rem){form{position:sticky;top:0;z-index:1}}
@media (max-width:40rem){.fields th,.fields td{display:block;width:auto}}
"""

_SCRIPT = """
const value = id => document.getElementById(id).value;
const items = [...document.querySelectorAll("[data-labels]")];
const texts = new Map(items.filter(i => i.tagName === "ARTICLE").map(i => [i.id, i.textContent.toLowerCase()]));
function show() {
  const asked = value("search").toLowerCase().split(/\\s+/).filter(Boolean), label = value("label"), field = value("field");
  let shown = 0;
  for (const item of items) {
    const id = item.id || item.querySelector("a").hash.slice(1), data = item.dataset;
    const labels = data.labels.split(" ").filter(l => !field || l.startsWith(field + ":"));
    const fits = (!value("laboratory") || data.laboratory === value("laboratory"))
      && (!value("mechanism") || data.mechanisms.split("|").includes(value("mechanism")))
      && (!value("status") || data.status === value("status"))
      && (!label || labels.some(l => l.endsWith(":" + label)))
      && asked.every(word => texts.get(id).includes(word));
    item.hidden = !fits;
    shown += fits && item.tagName === "ARTICLE";
  }
  document.getElementById("count").textContent = shown + " shown";
}
const form = document.querySelector("form");
form.addEventListener("input", show);
// The browser resets the controls after this event; done here, the cards never lag behind them.
form.addEventListener("reset", event => { event.preventDefault(); for (const control of form.elements) control.value = ""; show(); });
form.addEventListener("submit", event => event.preventDefault());
show();
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Evidence cards</title>
<style>{style}</style></head><body>
<h1>Evidence cards</h1>
<p>{summary}</p>
<p><b class="D">&nbsp;D&nbsp;</b> disclosed, with its place. <b class="I">&nbsp;I&nbsp;</b> inferred, with its premises. <b class="U">&nbsp;U&nbsp;</b> unknown:
not public, or not in our sources. <b>≠</b> sources disagree. A capability is no evidence of the training that gave it.</p>
<details><summary>The sources</summary><ul>{sources}</ul></details>
<form aria-label="Filter the cards">{filters}<label>text <input id="search" type="search" autocomplete="off"></label><button type="reset">All</button>
<output id="count" aria-live="polite">{total} shown</output></form>
<div class="scroll" role="region" aria-label="Overview: the strongest label of each field" tabindex="0">
<table class="overview"><thead><tr><th scope="col">system</th><th scope="col"><span>level</span></th>{head}<th scope="col"><span>the course</span></th></tr></thead>
<tbody>{rows}</tbody></table></div>
{cards}
<script>{script}</script>
</body></html>
"""
