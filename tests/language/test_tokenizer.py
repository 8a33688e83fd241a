"""Ids and texts: round trips, special tokens that text cannot forge, records that survive JSON and files."""

import json

from hypothesis import given, settings, strategies as st
import pytest

from conversations import LOOKS_SPECIAL, TOKENIZERS, WORDS, texts
from course.language import Tokenizer, digest
from course.tasks import reviews

SPECIAL = ["<pad>", "<bos>", "<end>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_special_tokens_have_the_first_ids(tokenizer):
    assert [tokenizer.token(i) for i in range(7)] == SPECIAL
    assert (tokenizer.bos_id, tokenizer.end_id) == (1, 2)
    assert tokenizer.pad_id == (2 if tokenizer.pad_is_end else 0)
    assert [tokenizer.role_id(role) for role in ("system", "user", "assistant", "tool")] == [3, 4, 5, 6]
    assert tokenizer.vocab_size == 7 + (len(WORDS) if tokenizer.kind == "words" else 256)
    assert tokenizer.decode(range(7)).replace(" ", "") == "".join(SPECIAL)


def test_the_ids_of_words_and_bytes_are_their_places():
    assert Tokenizer.words(WORDS).encode("7 plus a") == [10, 9, 7]
    assert Tokenizer.bytes().encode("Aé\n") == [7 + b for b in "Aé\n".encode()]
    assert [Tokenizer.bytes().token(7 + b) for b in (0x41, 0x20, 0xC3)] == ["A", "0x20", "0xC3"]
    assert Tokenizer.words(WORDS).token(9) == "plus"


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(TOKENIZERS).flatmap(lambda tokenizer: st.tuples(st.just(tokenizer), texts(tokenizer))))
def test_decoding_an_encoded_text_gives_the_text_and_no_special_id(case):
    tokenizer, text = case
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(i >= 7 for i in ids)


@pytest.mark.parametrize("text", LOOKS_SPECIAL)
def test_text_that_spells_a_special_token_is_text_or_refused(text):
    assert Tokenizer.bytes().encode(text) == [7 + b for b in text.encode()]
    with pytest.raises(ValueError, match="known words"):
        Tokenizer.words(WORDS).encode(f"a {text}")


@pytest.mark.parametrize("text", ["c", "a  b", " a", "a ", "a\nb", "A", "a\tb"])
def test_words_refuse_a_text_that_would_not_come_back(text):
    with pytest.raises(ValueError, match="known words"):
        Tokenizer.words(WORDS).encode(text)


def test_one_text_can_have_two_id_sequences():
    tokenizer = Tokenizer.bytes()
    first, second = [7 + 0xFF], [7 + 0xFE]
    assert tokenizer.decode(first) == tokenizer.decode(second) == "\ufffd"
    assert tokenizer.encode("\ufffd") not in (first, second)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_unknown_ids_roles_and_broken_text_are_refused(tokenizer):
    for bad in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match="id must be in"):
            tokenizer.decode([bad])
        with pytest.raises(ValueError, match="id must be in"):
            tokenizer.token(bad)
    with pytest.raises(ValueError, match="role"):
        tokenizer.role_id("root")
    with pytest.raises(ValueError, match="surrogates"):
        tokenizer.encode("\ud800")


@pytest.mark.parametrize("words", [[], [""], ["a b"], ["a\n"], ["<end>"], ["a<"], ["a", "b", "a"], ["\ud800"]])
def test_impossible_vocabularies_are_refused(words):
    with pytest.raises(ValueError, match="words"):
        Tokenizer.words(words)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_json_and_files_give_an_equal_tokenizer(tokenizer, tmp_path):
    copy = Tokenizer.from_json(json.loads(json.dumps(tokenizer.to_json())))
    tokenizer.save_pretrained(tmp_path / "new")
    read = Tokenizer.from_pretrained(tmp_path / "new")
    assert copy == read == tokenizer and hash(read) == hash(tokenizer)
    assert copy.digest() == read.digest() == tokenizer.digest()
    text = "a b" if tokenizer.kind == "words" else "<end>é"
    assert read.encode(text) == tokenizer.encode(text)


def test_each_difference_changes_the_digest():
    kinds = [*TOKENIZERS, Tokenizer.words(WORDS[::-1]), Tokenizer.words(WORDS[:-1])]
    assert len({tokenizer.digest() for tokenizer in kinds}) == len(kinds)
    assert Tokenizer.bytes().digest() == digest({"kind": "bytes", "pad_is_end": False, "special": SPECIAL})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "kind 'words' or 'bytes'"),
        ([["kind", "bytes"]], "kind 'words' or 'bytes'"),
        ({"kind": ["words"]}, "kind 'words' or 'bytes'"),
        ({"kind": "bpe", "pad_is_end": False}, "kind 'words' or 'bytes'"),
        ({"kind": "words", "pad_is_end": False}, "must have the keys"),
        ({"kind": "bytes", "pad_is_end": False, "words": ["a"]}, "must have the keys"),
        ({"kind": "bytes", "pad_is_end": False, "path": "/etc"}, "must have the keys"),
        ({"kind": "bytes", "pad_is_end": 1}, "pad_is_end"),
        ({"kind": "words", "pad_is_end": False, "words": "abc"}, "list of text"),
        ({"kind": "words", "pad_is_end": False, "words": [1]}, "list of text"),
        ({"kind": "words", "pad_is_end": False, "words": []}, "at least one"),
        ({"kind": "words", "pad_is_end": False, "words": ["<end>"]}, "'<'"),
        ({"kind": "words", "pad_is_end": False, "words": ["a", "a"]}, "distinct"),
    ],
)
def test_json_that_is_no_tokenizer_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_json(data)


def test_a_folder_with_another_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer.json"):
        Tokenizer.from_pretrained(tmp_path)
    Tokenizer.words(WORDS).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    whole = file.read_text()
    file.write_text(whole[:-50])
    with pytest.raises(ValueError, match="cannot be read"):
        Tokenizer.from_pretrained(tmp_path)
    changed = json.loads(whole)
    changed["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    file.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="holds another one"):
        Tokenizer.from_pretrained(tmp_path)


def test_the_review_language_has_the_ids_of_its_own_table():
    tokenizer = reviews.tokenizer()
    assert tokenizer.vocab_size == reviews.VOCAB_SIZE
    assert [tokenizer.token(i) for i in range(reviews.VOCAB_SIZE)] == list(reviews.ID)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.end_id) == (reviews.PAD, reviews.BOS, reviews.END)


def test_importing_the_room_does_not_import_the_library():
    import subprocess
    import sys

    code = "import sys, course.language, course.tasks.toolchat; sys.exit(bool({'tokenizers', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
