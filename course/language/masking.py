"""Which tokens of a transcript are the policy's actions."""

from jaxtyping import Bool, Int
from torch import Tensor
import torch

from course.language.serializer import ChatSerializer
from course.language.tokenizer import Tokenizer
from course.language.transcript import Transcript


def action_mask(transcript: Transcript, tokenizer: Tokenizer) -> tuple[Int[Tensor, "time"], Bool[Tensor, "time"]]:
    """Token ids of a transcript in the chat layout, and the mask of the tokens that the policy sampled.

        mask_t = 1 if token t was sampled, the end token of a sampled turn included; 0 for everything else

    Shapes and units: tokens [T] int64; mask [T] bool. With log-probabilities [T-1] use mask[1:].
    Why by structure: an end token that was sampled and one that the serializer put in have the same id, and so may padding.
    Reduces to: no action in a transcript without sampled turns; the sampled ids themselves, as tokens[mask], in any other.
    Raises: ValueError if a sampled turn holds an id outside the vocabulary, or an end token that does not fit its stop reason.
    Source: two common faults: masks over several turns that train on tool results, and masks that lose the end token.
    """
    encoded = ChatSerializer().encode(transcript, tokenizer)
    mask = torch.zeros(len(encoded.tokens), dtype=torch.bool)
    for span in encoded.spans:
        if span.kind == "sampled":
            mask[span.start : span.stop] = True
    return torch.tensor(encoded.tokens), mask
