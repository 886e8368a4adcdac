"""Ports: a free one can be bound, a taken one is named in one sentence."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from infra.errors import StackError
from infra.ports import check_port_free, free_port, port_answers


def listener() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", free_port()))
    sock.listen()
    return sock


def test_a_free_port_can_be_bound_and_answers_once_somebody_listens() -> None:
    with closing(listener()) as sock:
        assert port_answers(sock.getsockname()[1])
    assert not port_answers(free_port())


def test_free_ports_lie_outside_the_range_of_outgoing_connections() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
    if first <= 20_000 and last >= 65_000:
        pytest.skip("this kernel leaves no ports outside that range")
    assert not any(first <= free_port() <= last for _ in range(50))


def test_no_port_is_given_twice() -> None:
    """A broker that starts at once must not get the port of an engine that starts later."""
    ports = [free_port() for _ in range(600)]
    assert len(set(ports)) == len(ports)


def test_a_taken_port_is_one_sentence_that_says_which_and_for_what() -> None:
    with closing(listener()) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(
            StackError, match=rf"Port {port} on 127\.0\.0\.1, wanted for the router, is already"
        ):
            check_port_free(port, "the router")
    check_port_free(port, "the router")


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(StackError, match="between 1 and 65535"):
        check_port_free(port, "the router")
