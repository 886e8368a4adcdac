"""``tokenfleet dead``: records that could not be used, and replaying them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Kafka = Annotated[str, typer.Option(help="The broker, HOST:PORT.")]
DEFAULT_KAFKA = "127.0.0.1:9092"


def register(app: typer.Typer) -> None:
    """Add the command group to the CLI."""
    group = typer.Typer(help="Dead letters: records that could not be used.", no_args_is_help=True)
    group.command("list")(list_letters)
    group.command("replay")(replay)
    app.add_typer(group, name="dead")


def list_letters(
    kafka: Kafka = DEFAULT_KAFKA,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the letters to FILE.")
    ] = None,
) -> None:
    """Each record that was put aside: where it was, who refused it, and why."""
    import asyncio
    import json
    from dataclasses import asdict
    from datetime import UTC, datetime

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from sinks import dead
    from transport.errors import BrokerUnavailable

    try:
        letters = asyncio.run(dead.list_letters(kafka))
    except BrokerUnavailable as error:
        raise _failure(str(error)) from None
    console = Console()
    if letters:
        table = Table("at (UTC)", "topic", "partition", "offset", "by", "kind", "bytes", "times", "reason")
        for letter in letters:
            table.add_row(
                datetime.fromtimestamp(letter.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
                letter.origin_topic,
                str(letter.origin_partition),
                str(letter.origin_offset),
                escape(letter.component),
                letter.kind,
                str(letter.size_bytes),
                str(letter.times),
                escape(letter.reason),
            )
        console.print(table)
    console.print(f"{len(letters):,} records are in the dead letters.", highlight=False)
    if json_file is not None:
        try:
            json_file.write_text(json.dumps([asdict(letter) for letter in letters], indent=2) + "\n")
        except OSError as error:
            raise _failure(f"{json_file} can't be written: {error.strerror or error}.") from None


def replay(
    topic: Annotated[str, typer.Option(help="The origin's topic.")],
    partition: Annotated[int, typer.Option(min=0, help="The origin's partition.")],
    offset: Annotated[int, typer.Option(min=0, help="The origin's offset.")],
    kafka: Kafka = DEFAULT_KAFKA,
) -> None:
    """Produce the original record again, once what refused it is mended. Refused where it is gone."""
    import asyncio

    from rich.console import Console

    from sinks import dead
    from transport.errors import BrokerUnavailable

    try:
        sent = asyncio.run(dead.replay(kafka, topic, partition, offset))
    except (BrokerUnavailable, dead.ReplayRefused) as error:
        raise _failure(str(error)) from None
    Console().print(
        f"Replayed to {sent.topic} partition {sent.partition} offset {sent.offset}.", highlight=False
    )


def _failure(sentence: str) -> typer.Exit:
    from rich.console import Console

    Console(stderr=True).print(f"error: {sentence}", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(1)
