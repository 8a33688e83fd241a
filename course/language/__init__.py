"""Language: token ids to transcripts and back. Token ids are the record; text is derived and never turned back into ids."""

from course.language.masking import action_mask
from course.language.serializer import ChatSerializer, CompactSerializer, Encoded, Span
from course.language.stamp import canonical_json, digest, policy_stamp
from course.language.tokenizer import Tokenizer
from course.language.transcript import ROLES, Role, StopReason, Transcript, Turn

__all__ = [
    "ROLES", "ChatSerializer", "CompactSerializer", "Encoded", "Role", "Span", "StopReason", "Tokenizer", "Transcript", "Turn",
    "action_mask", "canonical_json", "digest", "policy_stamp",
]  # fmt: skip
