"""Where the service listens, and whether it may."""

from __future__ import annotations

import errno
import ipaddress
import socket

from slipstream.errors import StartupError

_BACKLOG = 2048


def check_listen_address(host: str, *, has_keys: bool, is_public_allowed: bool) -> None:
    """Refuse to answer the network without authentication, unless told to.

    Raises:
        StartupError: `host` is not loopback only, there are no keys, and nobody allowed it.
    """
    if has_keys or is_public_allowed or is_loopback(host):
        return
    raise StartupError(
        f"server.host = {host} can be reached from other machines, and no API key is set",
        hint="set SLIPSTREAM_API_KEYS or server.api_keys_file, listen on 127.0.0.1, or set "
        "server.allow_public_without_auth to true if something else protects the service",
    )


def is_loopback(host: str) -> bool:
    """Whether every address that `host` means is this machine's loopback.

    Raises:
        StartupError: `host` is not an address and no name that this machine knows.
    """
    return all(ipaddress.ip_address(address).is_loopback for address in _addresses(host))


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises:
        StartupError: The address cannot be listened on; says why.
    """
    address = _addresses(host)[0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """The address to talk to; a wildcard address is shown as this machine's own."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StartupError(
            f"server.host = {host} is no address of this machine: {error.strerror}",
            hint="use 127.0.0.1 for this machine only, or 0.0.0.0 for all networks",
        ) from error
    return [str(entry[4][0]).partition("%")[0] for entry in found]


def _cannot_listen(host: str, port: int, error: OSError) -> StartupError:
    if error.errno == errno.EADDRINUSE:
        hint = f"stop the program that uses port {port}, or choose another with server.port"
        return StartupError(f"port {port} on {host} is in use", hint=hint)
    if error.errno == errno.EACCES:
        hint = "ports below 1024 need privileges; choose another with server.port"
        return StartupError(f"port {port} on {host} may not be used", hint=hint)
    return StartupError(f"cannot listen on {host}, port {port}: {error.strerror}")
