"""What can be the address of a task: a host, or host:port. Imports without TensorFlow.

Addresses come from flags, TF_CONFIG and Slurm, and hosts become words of a command: so each is checked.
"""

from __future__ import annotations

import ipaddress
import re

from benchmarks.errors import UsageError

LAST_PORT = 65535
_LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}\.?")
_MOST_CHARACTERS = 253
_IN_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)(%[A-Za-z0-9_.-]+)?\]")
_ADDRESS = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+):([0-9]{1,5})")


def why_no_host(text: str) -> str | None:
    """Returns why a text is neither a host name nor an IP address, IPv6 in brackets; None if it is one."""
    brackets = _IN_BRACKETS.fullmatch(text)
    try:
        if brackets:
            ipaddress.IPv6Address(brackets[1])
        elif text.startswith("["):
            return "it has no IPv6 address in its brackets"
        elif not text.strip("0123456789."):
            ipaddress.IPv4Address(text)
    except ValueError as error:
        return f"it is no IP address ({error})"
    if not brackets and (not _NAME.fullmatch(text) or len(text) > _MOST_CHARACTERS):
        several = ". An IPv6 address stands in brackets, as [::1]" if text.count(":") > 1 else ""
        return f"a host name has letters, digits, '-', '_' and '.', and begins and ends with a letter or digit{several}"
    return None


def host_and_port(address: str, source: str) -> tuple[str, int]:
    """Returns the parts of an address, the host in small letters; `source` is what named it.

    Raises:
        UsageError: it is no address.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        brackets = " An IPv6 address stands in brackets, as [::1]:2222." if address.count(":") > 1 else ""
        raise UsageError(f"{source}: {address!r} is no address. Write host:port, such as node1:2222.{brackets}")
    host, port = match[1].lower(), int(match[2])
    why_not = why_no_host(host)
    if why_not:
        raise UsageError(f"{source}: {address!r} is no address: {why_not}.")
    if not 1 <= port <= LAST_PORT:
        raise UsageError(f"{source}: {address!r} has port {port}; a port is a number from 1 to {LAST_PORT}.")
    return host, port
