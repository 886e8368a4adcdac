"""One attempt inside a fast simulated instance: lengths, progress, and what it holds of the KV memory."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any, Final

WAITING: Final = 0
PREFILL: Final = 1
DECODE: Final = 2
FINISHED: Final = 3
REMOVED: Final = 4  # cancelled, or lost with its instance


class Sequence:
    """Lengths in tokens. ``blocks`` are the hashes of the prompt's full 512-token blocks, in order.

    Progress of a decoding sequence isn't stored: every step gives one token to each of them, so
    ``resident = base + steps of the instance``, and only ``base`` is kept. Only its instance changes it;
    ``owner`` is the caller's own.
    """

    __slots__ = (
        "admit_no",
        "base",
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "first_token_ms",
        "generated_tokens",
        "held",
        "output_tokens",
        "owner",
        "preemptions",
        "prompt_tokens",
        "queued_ms",
        "registered",
        "scheduled_ms",
        "state",
        "units",
    )

    def __init__(
        self, prompt_tokens: int, output_tokens: int, blocks: Items[int] = (), owner: Any = None
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.blocks = blocks
        self.owner = owner
        self.state = WAITING
        self.queued_ms = 0.0
        self.scheduled_ms: float | None = None  # first time in a batch
        self.first_token_ms: float | None = None
        self.cached_tokens = 0  # prompt tokens saved by the prefix cache at the first admission
        self.preemptions = 0
        # While not decoding: tokens generated so far (kept through a pre-emption) and tokens with KV.
        self.generated_tokens = 0
        self.computed_tokens = 0
        self.units = 0  # units of KV memory held, named blocks included (not kept up while decoding)
        self.held: list[int] = []  # named blocks held
        self.registered = 0  # leading blocks that have been offered to the prefix cache
        self.base = 0  # while decoding: resident tokens less the instance's step count
        self.admit_no = 0  # order of joining the batch
