import math

import pytest
import torch

from course.feedback.annotators import Annotator
from course.tasks import reviews
from course.tasks.records import PreferenceLabel, batch_of


def slow_gold(words: list[str]) -> float:
    """Gold read word by word; `words` from <bos> to the last real token."""
    sentiment, illegal, repeated = 0.0, 0, 0
    for i, word in enumerate(words):
        before, before2 = (words[i - k] if i >= k else "" for k in (1, 2))
        value = (word in reviews.POSITIVE + reviews.LIKED) - (word in reviews.NEGATIVE + reviews.DISLIKED)
        adverb = before in reviews.ADVERBS
        value *= 1.5 if adverb else 1.0
        sentiment += -value if before == "not" or (adverb and before2 == "not") else value
        if i:
            illegal += not reviews.legal_bigrams()[reviews.ID[before], reviews.ID[word]].item()
        content = word not in reviews.FUNCTION_WORDS + reviews.SPECIAL
        repeated += content and word in words[:i]
    penalty = illegal + 0.5 * repeated + 0.5 * ("<end>" not in words)
    return 2 * math.tanh(sentiment / 2) - min(3.0, penalty)


def batch_from(*texts: str):
    rows = [tuple(reviews.ID[word] for word in text.split()) for text in texts]
    return batch_of([(row[:3], row[3:]) for row in rows], reviews.PAD)


def test_gold_equals_the_slow_reading():
    rows = reviews.pool(reviews.prompts(40, 0), 4, reviews.Writer("any", slip=0.2, spam=0.2), 1)
    names = reviews.SPECIAL + reviews.WORDS
    slow = [slow_gold([names[i] for i in row[mask].tolist()]) for row, mask in zip(rows.tokens, rows.attention_mask)]
    torch.testing.assert_close(reviews.gold(rows), torch.tensor(slow), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "review, sentiment",
    [("was good . <end>", 1), ("was not good . <end>", -1), ("was very bad . <end>", -1.5), ("was not very bad . <end>", 1.5),
     ("was long . i loved the cast . <end>", 1)],
)  # fmt: skip
def test_sentiment_of_a_few_phrases(review, sentiment):
    parts = reviews.gold_parts(batch_from("<bos> the film " + review))
    assert parts.sentiment.item() == sentiment and parts.illegal.item() == 0 and parts.unfinished.item() == 0


def test_what_stands_in_padding_and_after_the_end_does_not_count():
    rows = batch_from("<bos> the film was good . <end>", "<bos> the film was good . it was very bad . <end>")
    before = reviews.gold(rows)
    junk = torch.where(rows.attention_mask, rows.tokens, reviews.ID["good"])
    after = reviews.gold(type(rows)(junk, rows.attention_mask, rows.action_mask))
    assert torch.equal(before, after)


def test_the_grammar_obeys_its_own_table_and_the_limits():
    rows = reviews.corpus(3000, seed=5)
    parts = reviews.gold_parts(rows)
    assert parts.illegal.sum() == 0 and parts.unfinished.sum() == 0
    used = torch.zeros_like(reviews.legal_bigrams())
    used[rows.tokens[:, :-1].flatten(), rows.tokens[:, 1:].flatten()] = True
    used[reviews.END], used[reviews.PAD] = False, False
    share = (used & reviews.legal_bigrams()).sum() / reviews.legal_bigrams().sum()
    assert share > 0.97  # nothing in the table that the grammar never writes
    assert rows.action_mask.sum(1).max() <= reviews.MAX_NEW_TOKENS and reviews.VOCAB_SIZE < 64


def test_gold_is_bounded_and_spam_is_bad():
    spam = reviews.gold(reviews.pool(reviews.prompts(50, 0), 2, reviews.Writer("spam", slip=0.0, spam=1.0), 0))
    assert (spam >= reviews.PENALTY_FLOOR - 2).all() and (spam <= 2).all()
    assert spam.max() < 0 < reviews.gold(reviews.corpus(200, 0)).max()


def test_a_row_depends_on_the_seed_and_its_number_only():
    asked = reviews.prompts(20, 3)
    long, short = reviews.responses(asked, reviews.SLOPPY, 9), reviews.responses(asked[:7], reviews.SLOPPY, 9)
    assert torch.equal(long.tokens[:7], short.tokens)
    assert not torch.equal(long.tokens, reviews.responses(asked, reviews.SLOPPY, 10).tokens)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    reviews.corpus(5, 0)
    assert torch.equal(torch.get_rng_state(), before)  # no global random numbers


def test_comparisons_carry_labels_and_provenance():
    pairs = reviews.comparisons(300, 0, Annotator("exact", tie_margin=0.05))
    assert len(pairs) == 300
    for pair in pairs:
        utility = reviews.gold(batch_of([(pair.prompt, pair.first), (pair.prompt, pair.second)], reviews.PAD))
        gap = (utility[0] - utility[1]).item()
        if pair.label.decided:
            assert (gap > 0) == (pair.label is PreferenceLabel.FIRST) and abs(gap) > 0.05
        else:
            assert pair.label is (PreferenceLabel.INVALID if pair.first == pair.second else PreferenceLabel.TIE)
        assert pair.provenance.annotator == "exact" and pair.provenance.policy_version == "sloppy"
        assert pair.family == reviews.text(pair.prompt[-1:])
    assert pairs == reviews.comparisons(300, 0, Annotator("exact", tie_margin=0.05))


def test_labelled_wants_neighbours_of_one_prompt():
    rows = reviews.responses(reviews.prompts(8, 1), reviews.SLOPPY, 0)
    with pytest.raises(ValueError, match="one prompt"):
        reviews.labelled(rows, Annotator("a"), 0, "v1")
    with pytest.raises(ValueError, match="two responses"):
        reviews.labelled(rows[:3], Annotator("a"), 0, "v1")


def test_rankings_agree_with_gold():
    for ranking in reviews.rankings(10, 5, seed=2):
        utility = reviews.gold(batch_of([(ranking.prompt, r) for r in ranking.responses], reviews.PAD)).tolist()
        for (u, a), (v, b) in zip(zip(utility, ranking.ranks), zip(utility[1:], ranking.ranks[1:])):
            assert (u > v) == (a < b) and (u == v) == (a == b)
        assert min(ranking.ranks) == 1


def test_the_ids_are_those_of_the_tokenizer():
    tokenizer = reviews.tokenizer()
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.end_id) == (reviews.PAD, reviews.BOS, reviews.END)
    assert tokenizer.vocab_size == reviews.VOCAB_SIZE
    assert tokenizer.encode(" ".join(reviews.WORDS)) == [reviews.ID[w] for w in reviews.WORDS]
