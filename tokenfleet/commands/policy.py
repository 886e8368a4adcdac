"""``tokenfleet policy``: apply and show what operators decided."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

_Kafka = Annotated[str, typer.Option(help="The broker, HOST:PORT.")]


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(help="Apply and show the fleet's policy.", no_args_is_help=True)
    app.add_typer(group, name="policy")

    @group.command("apply")
    def apply(
        file: Annotated[Path, typer.Argument(help="A YAML file; infra/policies/demo.yaml is one.")],
        kafka: _Kafka,
    ) -> None:
        """Check a policy file and put it in force."""
        import asyncio

        from rich.console import Console

        from infra.policies import PolicyFileError, load_policy, publish_policy
        from tokenfleet.logs import log_to_stderr
        from transport.errors import BrokerUnavailable

        log_to_stderr()
        try:
            policy = load_policy(file)
            asyncio.run(publish_policy(kafka, policy))
        except (PolicyFileError, BrokerUnavailable) as error:
            _fail(str(error))
        Console().print(
            f"The policy {policy.scope} is in force: {len(policy.classes)} classes, "
            f"{len(policy.residencies)} residency classes, {len(policy.caps)} caps, "
            f"{len(policy.tenants)} tenants.",
            markup=False,
            soft_wrap=True,
        )

    @group.command("show")
    def show(kafka: _Kafka) -> None:
        """Print the policies in force as YAML, keys' digests left out."""
        import asyncio

        import msgspec
        import yaml
        from rich.console import Console

        from infra.policies import current_policy
        from tokenfleet.logs import log_to_stderr
        from transport.errors import BrokerUnavailable

        log_to_stderr()
        try:
            policies = asyncio.run(current_policy(kafka))
        except BrokerUnavailable as error:
            _fail(str(error))
        except TimeoutError:
            _fail(f"The policy topic at {kafka} could not be read to its end in time; try again.")
        if not policies:
            Console().print("No policy is in force: one default class, no caps.", markup=False)
            return
        shown = [msgspec.to_builtins(row) for _, row in sorted(policies.items())]
        for row in shown:
            for tenant in row.get("tenants", ()):
                tenant.pop("key_sha256", None)
        text = yaml.safe_dump_all(shown, sort_keys=False)
        Console().print(text, markup=False, soft_wrap=True, highlight=False)


def _fail(sentence: str) -> NoReturn:
    from rich.console import Console

    Console(stderr=True).print(f"error: {sentence}", markup=False, soft_wrap=True)
    raise typer.Exit(1)
