"""What can go wrong with the broker, as sentences."""

from __future__ import annotations


class BrokerUnavailable(RuntimeError):  # noqa: N818 - reads as what happened
    """The broker did not answer in time."""

    def __init__(self, bootstrap: str, waited_s: float, detail: str = "") -> None:
        because = f" ({detail})" if detail else ""
        super().__init__(
            f"No Kafka broker answered at {bootstrap} within {waited_s:.0f} s{because}. "
            "Check the address, or start one with `tokenfleet up`."
        )
