"""The evidence cards: every system has one, it holds together, what it points at exists, and the page shows all of it."""

import dataclasses
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course.cli import app
from course.evidence.cards import SILENT, STATUSES, Card, label_counts, load_cards, page, read_card
from course.evidence.claims import FIELDS, Claim, EvidenceTable
from course.evidence.lint import strong_words
from course.language.stamp import digest

ROOT = Path(__file__).resolve().parents[2]
CARDS = load_cards()
BY_NAME = {card.name: card for card in CARDS}
SECTIONS = {1: 0, 2: 6, 3: 13, 4: 7, 5: 10, 6: 4, 7: 10, 8: 6, 9: 2, 10: 0, 11: 0, 12: 0, 13: 0, 14: 0, 15: 0}  # of source A
LINES = 232  # of source B
CLOSED = ("GPT-5.2 to GPT-5.6", "Claude 4 to Claude 5", "Gemini 3 to 3.5")


# ------------------------------------------------------------------ what the cards say


def test_every_system_has_one_card():
    assert len(CARDS) == 56
    assert [sum(card.source.startswith(source) for card in CARDS) for source in "ABC"] == [31, 18, 7]
    assert [card.level for card in CARDS if card.source.startswith("A 3")] == [2, 3, 2, 3, 5, 3, 5, 4, 5, 4, 5, 6, 7]


def test_the_rows_are_those_of_the_contract():
    """Names, levels, sources and what must work, as the project's list of systems had them (shared/systems.toml), by their digest."""
    rows = sorted([card.name, card.level, card.source, card.works] for card in CARDS)
    assert digest(rows) == "426909e43ff013cd9bb90222eae52b284fea6d6342dd6c7dd9e0aaca9a64acb1"


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_place_is_in_its_source(card):
    for claim in card.table.claims:
        for place in filter(None, claim.place.split(", ")):
            if found := re.fullmatch(r"A (\d+)(?:\.(\d+))?", place):
                assert int(found[2] or 0) <= SECTIONS[int(found[1])], place
            elif found := re.fullmatch(r"B line (\d+)", place):
                assert 1 <= int(found[1]) <= LINES, place


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_what_a_card_points_at_exists(card):
    for place in card.where:
        path, _, section = place.partition(" § ")
        source = ROOT / re.sub(r"^levels/(.*)\.ipynb$", r"solutions/\1.py", path)
        assert source.exists(), path
        if section:
            assert re.search(rf"^# #+ {re.escape(section)}$", source.read_text(), re.MULTILINE), place
    for test in card.tests:
        assert (ROOT / test).exists(), test


@pytest.mark.parametrize("name", CLOSED)
def test_of_closed_releases_the_lineage_is_disclosed_and_the_recipe_is_said_to_be_unknown(name):
    card = BY_NAME[name]
    (lineage,) = card.table.row("base_checkpoint")
    assert lineage.label == "D" and lineage.text.startswith("lineage")
    for field in ("sft_data", "environment", "feedback", "reward", "optimizer", "rollouts", "compute"):
        (claim,) = card.table.row(field)
        assert claim.label == "U" and claim.text.startswith("recipe: "), (field, claim)


def test_a_capability_card_has_no_recipe():
    card = BY_NAME["Computer use and robotics boundary (Anthropic)"]
    assert card.labels["inference"] == "D" and {card.labels[field] for field in FIELDS if field != "inference"} == {"U"}


def test_what_answers_no_question_is_not_disclosed():
    """A ratio without a number, a count of something else, a denial: notes of a row that is U. Denials may stand against another source."""
    for name, field in (
        ("o3 / o4-mini tool choice", "compute"), ("Gemini 2.5 RL*F", "compute"), ("PRM800K", "optimizer"), ("AlphaCode / AlphaEvolve", "optimizer"),
        ("RT-2 / SIMA / Gemini Robotics", "optimizer"), ("Google RLAIF", "rollouts"), ("Constitutional AI", "rollouts"), ("Playhouse embodied RLHF", "rollouts"),
        ("Computer-Using Agent", "inference"), ("Claude 4 to Claude 5", "evaluation"), ("InstructGPT", "inference"),
    ):  # fmt: skip
        (claim,) = BY_NAME[name].table.row(field)
        assert claim.label == "U" and claim.text, (name, field)
    denials = r"no (absolute )?numbers?\b|no count|not disclosed|not published|none is reported|not episodes"
    for card in CARDS:
        for claim in card.table.claims:
            assert claim.label != "D" or claim.field == "unknowns" or not re.search(denials, claim.text), (card.name, claim)


def test_releases_of_which_nothing_is_built_are_cards_only():
    assert {card.name for card in CARDS if card.status == "card only"} == {
        *CLOSED,
        "Computer use and robotics boundary (Anthropic)",
    }
    assert all(("closed release" in card.mechanisms) == (card.name in CLOSED) for card in CARDS)
    counts = [sum(card.status == status for card in CARDS) for status in ("done", "in part", "not done", "card only")]
    assert "In the course: {} in full, {} in part, {} not; {} as a card only.".format(*counts) in PAGE


def test_a_mechanism_is_shared_so_that_its_filter_shows_more_than_one_card():
    counts = Counter(mechanism for card in CARDS for mechanism in card.mechanisms)
    assert [mechanism for mechanism, count in counts.items() if count < 2] == [] and len(counts) < len(CARDS)


def test_rl_is_no_optimizer():
    """A system whose sources say RL and no algorithm has U in that row."""
    for card in CARDS:
        if "RL, optimizer unknown" in card.mechanisms:
            assert card.labels["optimizer"] == "U", card.name


def test_conflicts_keep_both_values():
    found = {(c.field, c.about): {claim.text: claim.place for claim in c.claims} for c in BY_NAME["InstructGPT"].conflicts}
    assert found == {
        ("optimizer", "KL coefficient"): {"0.02": "A 3.3", "0.2": "B line 203"},
        ("reward", "start of the reward model"): {"a GPT-3 checkpoint": "A 3.3", "the SFT model": "B line 203, C ftip-002P"},
    }
    with pytest.raises(ValueError, match="KL coefficient"):
        BY_NAME["InstructGPT"].table.value("optimizer", "KL coefficient")


def test_numbers_keep_their_conditions():
    texts = {name: " ".join(claim.text for claim in card.table.claims) for name, card in BY_NAME.items()}
    assert "OSWorld 38.1, WebArena 58.1, WebVoyager 87" in texts["Computer-Using Agent"]
    assert "71/73 % raw and 59/61 % length-adjusted" in texts["Google RLAIF"]
    assert "93 % of the human rate" in texts["Playhouse embodied RLHF"]
    assert "these count prompts, not episodes" in texts["Constitutional AI"]


def test_no_card_uses_words_that_nearly_always_claim_too_much():
    assert [(card.name, claim.text) for card in CARDS for claim in card.table.claims if strong_words(claim.text)] == []


def test_every_row_of_a_table_has_a_label():
    counts = label_counts(CARDS)
    assert list(counts) == list(FIELDS)
    assert all(sum(row.values()) == len(CARDS) for row in counts.values())


# ------------------------------------------------------------------ cards that are refused


@pytest.mark.parametrize(
    "change, told",
    [
        ({"laboratory": "Hooli"}, "laboratory"),
        ({"status": "nearly"}, "status"),
        ({"missing": "half of it"}, "missing"),
        ({"status": "in part"}, "missing"),
        ({"tests": ()}, "test"),
        ({"where": ("course/training/ppo.py",)}, "section of a notebook"),
        ({"where": (), "status": "in part", "missing": "all"}, "where"),
        ({"mechanisms": ()}, "mechanism"),
        ({"table": EvidenceTable()}, "claim"),
        ({"table": EvidenceTable((Claim("reward", "x", "D", "D 3.3"),))}, "place"),
        ({"table": EvidenceTable((Claim("reward", "x", "D", "A 3.3; B line 1"),))}, "place"),
    ],
)
def test_a_card_that_does_not_hold_together_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(BY_NAME["InstructGPT"], **change)


@pytest.mark.parametrize(
    "parts", [["D", "A 3.3"], ["D", "A 3.3", "x", "y", "z"], ["D", "", "x"], ["I", [], "x"], ["U", "A 3.3", "x"]]
)
def test_a_claim_of_another_form_is_refused(parts):
    row = {"name": "x", "source": "A 3.1", "level": 2, "works": "x", "laboratory": "OpenAI", "year": "", "mechanisms": ["x"]}
    row |= {"status": "not done", "missing": "all of it", "where": [], "tests": []}
    assert isinstance(read_card(row | {"fields": {"reward": [["D", "A 3.3", "x"]]}}), Card)
    with pytest.raises(ValueError):
        read_card(row | {"fields": {"reward": [parts]}})


# ------------------------------------------------------------------ the page


class Outline(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.articles, self.links, self.ids, self.labelled, self.controls, self.open = [], [], [], 0, 0, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.articles += [found] if tag == "article" else []
        self.links += [found["href"]] if "href" in found else []
        self.open.append(tag)
        if tag in ("select", "input"):
            self.controls += 1
            self.labelled += "label" in self.open

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass


PAGE = page(CARDS)


def test_the_page_shows_every_card_and_every_claim():
    outline = Outline(PAGE)
    assert [article["data-status"] for article in outline.articles] == [card.status for card in CARDS]
    assert len(set(outline.ids)) == len(outline.ids)
    assert outline.links == [f"#{article['id']}" for article in outline.articles]
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", "", PAGE)).replace("&#x27;", "'").replace("&gt;", ">").replace("&amp;", "&")
    for card in CARDS:
        assert card.name in text and card.missing in text
        for claim in card.table.claims:
            assert (claim.text or SILENT[claim.field]) in text and claim.place in text and all(p in text for p in claim.premises)


def test_the_page_needs_nothing_else():
    assert not re.search(r"https?:|src=|@import|url\(|fetch\(", PAGE)


def test_every_control_has_a_label_and_every_label_is_a_letter():
    outline = Outline(PAGE)
    assert outline.controls == outline.labelled == 6
    cells = re.findall(r'<td class="([DIU])">([^<]*)</td>', PAGE)
    assert len(cells) == len(CARDS) * len(FIELDS) and all(text.rstrip("≠") == label for label, text in cells)


def test_rows_that_are_not_done_say_so():
    for card in CARDS:
        article = PAGE[PAGE.index(f"<h2>{card.name.replace(chr(39), '&#x27;')}</h2>") :].partition("</article>")[0]
        assert f"What the course builds of it: {card.status}" in article
        assert ("Not there yet" in article, "Not done" in article) == (card.status == "in part", card.status == "not done")


def test_what_a_card_says_is_text_and_no_markup():
    shown = page([dataclasses.replace(BY_NAME["WebGPT"], name='<script>x("&")</script>')])
    assert "<script>x" not in shown and "&lt;script&gt;x(&quot;&amp;&quot;)" in shown


def test_the_command_writes_the_page_and_names_what_is_not_done(tmp_path):
    result = CliRunner().invoke(app, ["cards", "--output", str(tmp_path / "new" / "cards.html")])
    assert result.exit_code == 0 and (tmp_path / "new" / "cards.html").read_text("utf-8") == PAGE
    for status in STATUSES:
        names = [card.name for card in CARDS if card.status == status]
        assert f"{len(names)} {status}: {'; '.join(names)}" in result.output


# ------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    sync = pytest.importorskip("playwright.sync_api", reason="the page is not tried in a browser: no playwright")
    from course.doctor import chromium

    if chromium() is None:
        pytest.skip("the page is not tried in a browser: no Chromium on this machine")
    target = tmp_path_factory.mktemp("page") / "cards.html"
    target.write_text(PAGE, "utf-8")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        tab = browser.new_page()
        errors = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(target.as_uri())
        yield tab
        browser.close()
    assert errors == []


def shown(tab):
    names = tab.eval_on_selector_all(
        "article", "all => all.filter(a => a.checkVisibility()).map(a => a.querySelector('h2').textContent)"
    )
    rows = tab.eval_on_selector_all(
        ".overview tbody tr", "all => all.filter(r => r.checkVisibility()).map(r => r.cells[0].textContent)"
    )
    assert names == rows and tab.inner_text("#count") == f"{len(names)} shown"
    return names


def test_filters_show_what_fits_and_only_that(opened):
    assert len(shown(opened)) == len(CARDS)
    opened.select_option("#laboratory", "Anthropic")
    assert shown(opened) == [card.name for card in CARDS if card.laboratory == "Anthropic"]
    opened.select_option("#field", "optimizer")
    opened.select_option("#label", "D")
    assert shown(opened) == ["Helpful and Harmless Assistant", "Constitutional AI"]
    opened.select_option("#laboratory", "")
    opened.select_option("#mechanism", "reward model")
    assert shown(opened) == [c.name for c in CARDS if "reward model" in c.mechanisms and c.labels["optimizer"] == "D"]
    opened.click("button[type=reset]")
    opened.fill("#search", "disagree KL")
    assert "InstructGPT" in shown(opened) and "WebGPT" not in shown(opened)
    opened.click("button[type=reset]")
    opened.select_option("#status", "not done")
    assert shown(opened) == [card.name for card in CARDS if card.status == "not done"]
    opened.click("button[type=reset]")
    assert len(shown(opened)) == len(CARDS)


def test_the_page_can_be_used_from_the_keyboard(opened):
    opened.click("h1")
    reached = []
    for _ in range(9):
        opened.keyboard.press("Tab")
        reached.append(opened.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached == ["SUMMARY", "laboratory", "mechanism", "label", "field", "status", "search", "BUTTON", "DIV"]
    opened.focus("#laboratory")
    opened.keyboard.type("Anth")
    assert set(shown(opened)) == {card.name for card in CARDS if card.laboratory == "Anthropic"}
    opened.click("button[type=reset]")
