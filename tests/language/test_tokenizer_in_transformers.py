"""transformers, without a network, gives the ids of our serializers: also for text that looks like special tokens."""

import json

from hypothesis import given, settings, strategies as st
import pytest

from conversations import LOOKS_SPECIAL, QUIET, TOKENIZERS, conversations
from course.language import ChatSerializer, CompactSerializer, Transcript, Turn
from course.tasks.toolchat import toolchat_tokenizer, toolchat_transcripts

pytestmark = QUIET

SERIALIZERS = (ChatSerializer(), CompactSerializer())


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    from transformers import AutoTokenizer

    loaded = {}

    def of(tokenizer, serializer, beside_a_model=False):
        key = (tokenizer, serializer.name, beside_a_model)
        if key not in loaded:
            folder = tmp_path_factory.mktemp("tokenizer")
            tokenizer.save_pretrained(folder, template=serializer.chat_template())
            if beside_a_model:
                model = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": tokenizer.vocab_size}
                (folder / "config.json").write_text(json.dumps(model))
            loaded[key] = AutoTokenizer.from_pretrained(folder)
        return loaded[key]

    return of


def messages(transcript):
    return [{"role": turn.role, "content": turn.text} for turn in transcript.turns]


def ids(theirs, transcript, **options):
    return tuple(theirs.apply_chat_template(messages(transcript), tokenize=True, return_dict=True, **options)["input_ids"])


@settings(deadline=None, max_examples=40)
@given(case=conversations(only_written=True).filter(lambda case: case[1].turns), serializer=st.sampled_from(SERIALIZERS))
def test_the_chat_template_gives_the_ids_of_the_serializer(load, case, serializer):
    tokenizer, transcript = case
    theirs = load(tokenizer, serializer)
    assert ids(theirs, transcript) == serializer.encode(transcript, tokenizer).tokens
    assert ids(theirs, transcript, add_generation_prompt=True) == serializer.prompt(transcript, tokenizer)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("beside_a_model", [False, True])
def test_special_ids_and_the_saved_default_template(load, tokenizer, beside_a_model, tmp_path):
    theirs = load(tokenizer, SERIALIZERS[0], beside_a_model)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos_id, tokenizer.end_id)
    assert theirs.pad_token_id == tokenizer.pad_id
    assert len(theirs) == tokenizer.vocab_size
    text = "a 7" if tokenizer.kind == "words" else " é\n" + "".join(LOOKS_SPECIAL)
    transcript = Transcript((Turn("system", text), Turn("user", ""), Turn("assistant", text)))
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text() == SERIALIZERS[0].chat_template()
    assert ids(theirs, transcript) == SERIALIZERS[0].encode(transcript, tokenizer).tokens
    assert theirs.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("looks_special", LOOKS_SPECIAL)
def test_no_special_id_can_be_written_by_a_user(load, looks_special):
    tokenizer = TOKENIZERS[2]
    tokens = ids(load(tokenizer, SERIALIZERS[0]), Transcript((Turn("user", looks_special + looks_special),)))
    assert [i for i in tokens if i < 7] == [tokenizer.bos_id, tokenizer.role_id("user"), tokenizer.end_id]


@pytest.mark.parametrize("tokenizer", [TOKENIZERS[0], TOKENIZERS[2]])
def test_one_begin_token_by_both_ways_to_the_ids(load, tokenizer):
    """Rendering first and tokenising afterwards is where begin tokens get doubled."""
    theirs = load(tokenizer, SERIALIZERS[0])
    transcript = Transcript((Turn("user", "a"),))
    rendered = theirs.apply_chat_template(messages(transcript), tokenize=False)
    assert theirs(rendered)["input_ids"] == list(ids(theirs, transcript)) and ids(theirs, transcript).count(tokenizer.bos_id) == 1
    assert theirs("a")["input_ids"] == tokenizer.encode("a")


def test_finished_tool_conversations_agree_when_written_out(load):
    tokenizer = toolchat_tokenizer()
    theirs = load(tokenizer, SERIALIZERS[0])
    for transcript in toolchat_transcripts(40, seed=2)[1::4]:
        turns = (Turn(t.role, tokenizer.decode(t.ids[:-1])) if t.sampled else t for t in transcript.turns)
        assert ids(theirs, Transcript(tuple(turns))) == SERIALIZERS[0].encode(transcript, tokenizer).tokens


def test_an_unknown_role_is_an_error_there_too(load):
    theirs = load(TOKENIZERS[0], SERIALIZERS[0])
    with pytest.raises(Exception, match="unknown role"):
        theirs.apply_chat_template([{"role": "root", "content": "a"}], tokenize=True)
