"""No setting is taken and then ignored."""

from __future__ import annotations

import ast

from slipstream.config.annotations import choices
from slipstream.config.fields import settings
from tests.support.paths import REPOSITORY

# Read by the configuration itself: in `load_api_keys` and in `ModelConfig.public_name`.
READ_IN_CONFIG = {"api_keys_file", "served_name"}


def attributes_read_outside_config() -> set[str]:
    package = REPOSITORY / "src" / "slipstream"
    return {
        node.attr
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "config"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }


def test_every_setting_that_has_a_choice_is_read_by_something() -> None:
    names = {
        setting.path.rpartition(".")[2]
        for setting in settings()
        # `kind` of one class says nothing that code could read.
        if len(choices(setting.field.annotation)) != 1
    }
    ignored = names - attributes_read_outside_config() - READ_IN_CONFIG
    assert not ignored
