"""Two small tokenizers on top of the `tokenizers` library: one for closed languages of words, one for any text, byte by byte.

Special tokens can be written by the serializer only. Text that spells one stays text, in `encode` and in the chat template that
transformers applies.
"""

import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from course.language.stamp import digest
from course.language.transcript import ROLES

PAD, BOS, END = "<pad>", "<bos>", "<end>"
ROLE_TOKENS = {role: f"<|{role}|>" for role in ROLES}
SPECIAL = (PAD, BOS, END, *ROLE_TOKENS.values())
# transformers finds special tokens in the rendered text of a conversation. So the template puts this character after every "<" of
# a turn's content, which leaves nothing to find, and the tokenizer takes one away after every "<" before it cuts the text up.
GUARD = "\x1b"


def chat_template(headers: Mapping[str, str]) -> str:
    """The jinja template of a layout in which a turn is headers[role], its content, and the end token, after one begin token."""
    table = ", ".join(f"'{role}': '{headers[role]}'" for role in ROLES)
    lines = (
        f"{{%- set headers = {{{table}}} -%}}",
        f"{{{{- '{BOS}' -}}}}",
        "{%- for message in messages -%}",
        "{%- if message['role'] not in headers -%}",
        "{{- raise_exception('unknown role: ' + message['role']) -}}",
        "{%- endif -%}",
        "{{- headers[message['role']] -}}",
        r"{{- message['content'] | replace('<', '<\x1b') -}}",
        f"{{{{- '{END}' -}}}}",
        "{%- endfor -%}",
        "{%- if add_generation_prompt -%}",
        "{{- headers['assistant'] -}}",
        "{%- endif -%}",
    )
    return "\n".join(lines)


@dataclass(frozen=True)
class Tokenizer:
    """Ids 0 to 6 are the special tokens, then come the words, or the 256 bytes. Make one with `words` or `bytes`.

    pad_is_end: padding uses the end token, as many published checkpoints do; nothing may then be read off an id being pad_id.
    """

    kind: str  # "words" or "bytes"
    vocabulary: tuple[str, ...] = ()  # of kind "words"
    pad_is_end: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("words", "bytes"):
            raise ValueError(f"kind must be 'words' or 'bytes'; got {self.kind!r}")
        if type(self.pad_is_end) is not bool:
            raise ValueError(f"pad_is_end must be True or False; got {self.pad_is_end!r}")
        if (self.kind == "words") != bool(self.vocabulary):
            count = len(self.vocabulary)
            raise ValueError(f"words must be at least one for kind 'words' and none for 'bytes'; got {count} for {self.kind!r}")
        for word in self.vocabulary:
            if not isinstance(word, str) or word.split() != [word] or any("\ud800" <= c <= "\udfff" for c in word):
                raise ValueError(f"words must be non-empty Unicode text without white space; got {word!r}")
            if "<" in word:
                raise ValueError(f"words must not contain '<', with which special tokens begin; got {word!r}")
        if len(set(self.vocabulary)) != len(self.vocabulary):
            word, times = Counter(self.vocabulary).most_common(1)[0]
            raise ValueError(f"words must be distinct; got {word!r} {times} times")

    @classmethod
    def words(cls, words: Sequence[str], pad_is_end: bool = False) -> "Tokenizer":
        """For a closed language: a text is words of this list with one space between them, anything else is refused."""
        return cls("words", tuple(words), pad_is_end)

    @classmethod
    def bytes(cls, pad_is_end: bool = False) -> "Tokenizer":
        """For any text: one token per byte of its UTF-8 form."""
        return cls("bytes", (), pad_is_end)

    @property
    def vocab_size(self) -> int:
        return len(SPECIAL) + (len(self.vocabulary) or 256)

    @property
    def pad_id(self) -> int:
        return self.end_id if self.pad_is_end else SPECIAL.index(PAD)

    @property
    def bos_id(self) -> int:
        return SPECIAL.index(BOS)

    @property
    def end_id(self) -> int:
        return SPECIAL.index(END)

    def role_id(self, role: str) -> int:
        if role not in ROLE_TOKENS:
            raise ValueError(f"role must be one of {', '.join(ROLES)}; got {role!r}")
        return SPECIAL.index(ROLE_TOKENS[role])

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Adds no special token, and makes none out of text that looks like one."""
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise ValueError(f"text must be Unicode text without lone surrogates; got {text!r}")
        if self.kind == "words" and text:
            unknown = [word for word in text.split(" ") if word not in self._known]
            if unknown:
                raise ValueError(f"text must be known words with one space between them; got {unknown[0]!r} in {text!r}")
        return self._library.encode(text.replace("<", "<" + GUARD), add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, for reading: special tokens are spelled out, bytes that are no UTF-8 become U+FFFD."""
        return self._library.decode([self._checked(i) for i in ids], skip_special_tokens=False)

    def token(self, id: int) -> str:
        """How one id is shown."""
        byte = self._checked(id) - len(SPECIAL)
        if self.kind == "words" or byte < 0:
            return self._library.id_to_token(id)
        return chr(byte) if 0x20 < byte < 0x7F else f"0x{byte:02X}"

    def to_json(self) -> dict[str, Any]:
        words = {"words": list(self.vocabulary)} if self.kind == "words" else {}
        return {"kind": self.kind, "pad_is_end": self.pad_is_end, **words}

    @classmethod
    def from_json(cls, data: Any) -> "Tokenizer":
        kind = data.get("kind") if isinstance(data, dict) else None
        if kind not in ("words", "bytes"):
            raise ValueError(f"a tokenizer must be an object of kind 'words' or 'bytes'; got {str(data)[:80]}")
        keys = {"kind", "pad_is_end"} | ({"words"} if kind == "words" else set())
        if set(data) != keys:
            raise ValueError(f"a tokenizer of kind {kind!r} must have the keys {sorted(keys)}; got {sorted(map(str, data))}")
        words, pad_is_end = data.get("words", []), data["pad_is_end"]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"words must be a list of text; got {str(words)[:80]}")
        if type(pad_is_end) is not bool:
            raise ValueError(f"pad_is_end must be true or false; got {pad_is_end!r}")
        return cls(kind, tuple(words), pad_is_end)

    def digest(self) -> str:
        return digest({**self.to_json(), "special": SPECIAL})

    def save_pretrained(self, directory: str | os.PathLike, template: str = chat_template(ROLE_TOKENS)) -> None:
        """Write the files from which transformers.AutoTokenizer gives the same ids. template: ChatSerializer's, or another's."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": END,
            "pad_token": END if self.pad_is_end else PAD,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
        }
        (folder / "tokenizer.json").write_text(self._library.to_str(pretty=True), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike) -> "Tokenizer":
        """What save_pretrained wrote. Another tokenizer is refused: this class would give other ids than it."""
        from tokenizers import Tokenizer as Library

        folder = Path(directory)
        foreign = f"directory must hold a tokenizer written by save_pretrained; {folder} "
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not (folder / name).is_file():
                raise ValueError(foreign + f"has no {name}")
        try:
            found = Library.from_file(str(folder / "tokenizer.json"))
            pad = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["pad_token"]
            names = sorted(found.get_vocab(), key=found.get_vocab().get)
            kind = json.loads(found.to_str())["model"]["type"]
            words = tuple(names[len(SPECIAL) :]) if kind == "WordLevel" else ()
            tokenizer = cls("words" if words else "bytes", words, pad_is_end=pad == END)
        except Exception as error:  # the library raises bare Exception for a broken file
            raise ValueError(foreign + f"cannot be read: {error}") from None
        if found.to_str() != tokenizer._library.to_str():
            raise ValueError(foreign + "holds another one")
        return tokenizer

    def _checked(self, id: int) -> int:
        if not 0 <= id < self.vocab_size:
            raise ValueError(f"id must be in [0, {self.vocab_size}); got {id}")
        return id

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.vocabulary)

    @cached_property
    def _library(self) -> Any:
        from tokenizers import AddedToken, Tokenizer as Library, decoders, models, normalizers, pre_tokenizers

        names = SPECIAL + (self.vocabulary or tuple(f"<0x{byte:02X}>" for byte in range(256)))
        ids = {name: i for i, name in enumerate(names)}
        if self.kind == "words":
            library = Library(models.WordLevel(ids, unk_token="<unknown>"))  # not in the vocabulary: an unknown word is an error
            library.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        else:
            # No character is in the vocabulary, so each one falls back to its bytes; no merges, so nothing is ever joined.
            library = Library(models.BPE(ids, [], byte_fallback=True))
            library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
            library.normalizer = normalizers.Replace("<" + GUARD, "<")
        library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
        return library
