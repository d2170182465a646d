"""Starts run_bench in a private network, which no other host can reach. Imports nothing but the standard library.

`python benchmarks/process/private_network.py run_bench.py ARGUMENTS` is run_bench in a network namespace of its own.
TensorFlow's servers listen on all interfaces, and execute what any client asks, as the user who started them. For tasks
that are all on this host, a network with nothing but a loopback keeps other clients out.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP_AND_RUNNING = 0x1 | 0x40
# struct ifreq: an interface's name, its flags, and what the other members of the union need.
_INTERFACE_REQUEST = "16sh22x"
_PROC = Path("/proc/self")
# Marks a moved process, by an option of the interpreter: those are not inherited, and are no flags of run_bench.
_ENTERED = "cnn_bench_private_network"
# What to say of a cluster that has none.
OPEN_PORTS = (
    "while the cluster runs, any host or user that reaches its tasks' ports can execute code as you: "
    "docs/howto/several-hosts.md#security."
)
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Moves this process, and replaces it by run_bench; ends it with status 2 if it cannot be moved."""
    program, *arguments = sys.argv[1:]
    problem = enter()
    if not problem:
        try:
            os.execv(sys.executable, [sys.executable, "-X", _ENTERED, program, *arguments])
        except OSError as error:  # in a user namespace, root has no right to the files of others
            problem = f"{sys.executable} cannot be started in it: {error.strerror}; all users must have access"
    sentence = (
        f"run_bench: There is no private network for the cluster ({problem}). Without one, other hosts and users could "
        "reach its servers, which execute whatever they receive, without a password. Permit user namespaces here, or "
        "pass --noprivate_network where you trust the network: docs/howto/several-hosts.md#security."
    )
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        print(sentence, file=sys.stderr, flush=True)
    sys.exit(2)


def is_entered() -> bool:
    """Returns whether `main` has moved this process."""
    return _ENTERED in sys._xoptions


def enter() -> str | None:
    """Moves this process into a private network namespace, in which only the loopback exists and is up.

    Processes that it starts are in there too, and can talk over 127.0.0.1. No other process can reach what listens
    there, and they reach nothing else: no host name is resolved, nothing is downloaded. Files are as before, also those
    that come over a network.

    A namespace belongs to a thread, and to those that it starts later; so this must be called before there is a second
    one: before NumPy, TensorFlow and gRPC are imported.

    Without the right to make one (CAP_SYS_ADMIN), the process first gets a user namespace, in which it keeps its user
    and its files, but can gain no rights outside: root in a container cannot read private files of other users.

    After a refusal this process may have been moved in part (AppArmor grants user namespaces without rights), and must
    end.

    Returns:
        None if it worked, else the reason in words.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        try:
            _unshare(_CLONE_NEWNET)
        except PermissionError:
            _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
            # Groups could be dropped to get past rights that exclude them, so that must be given up first.
            _PROC.joinpath("setgroups").write_bytes(b"deny")
            for name, own in (("uid_map", user), ("gid_map", group)):
                _PROC.joinpath(name).write_bytes(f"{own} {own} 1".encode())
        _bring_loopback_up()
    except OSError as error:
        return f"the kernel permits no new network namespace: {error.strerror or error}"
    return None


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack(_INTERFACE_REQUEST, b"lo", 0)
        name, flags = struct.unpack(_INTERFACE_REQUEST, fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        up = struct.pack(_INTERFACE_REQUEST, name, flags | _IFF_UP_AND_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, up)


if __name__ == "__main__":
    main()
