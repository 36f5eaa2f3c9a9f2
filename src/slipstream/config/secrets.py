"""API keys: read from a variable or from a file of their own, never from the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.config.server import ServerConfig
from slipstream.errors import ConfigError

API_KEYS_VARIABLE = "SLIPSTREAM_API_KEYS"


def load_api_keys(server: ServerConfig, env: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that the service accepts; empty when none is set, so that everyone is answered.

    Args:
        env: Environment; `SLIPSTREAM_API_KEYS` holds keys with commas between them.

    Raises:
        ConfigError: The file cannot be read, holds no key, or a key holds white space.
    """
    keys = [key.strip() for key in env.get(API_KEYS_VARIABLE, "").split(",")]
    if server.api_keys_file is not None:
        keys += _read_file(server)
    keys = [key for key in keys if key]
    if any(key.split() != [key] for key in keys):
        raise ConfigError(
            "an API key must not hold white space",
            hint=f"{API_KEYS_VARIABLE} takes commas between keys, the file one key per line",
        )
    return tuple(dict.fromkeys(keys))


def _read_file(server: ServerConfig) -> list[str]:
    path = server.api_keys_file
    assert path is not None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"server.api_keys_file {path} cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"server.api_keys_file {path} is not UTF-8 text") from error
    keys = [line.partition("#")[0].strip() for line in lines]
    if not any(keys):
        raise ConfigError(
            f"server.api_keys_file {path} holds no key",
            hint="write one key per line, or remove the setting",
        )
    return keys
