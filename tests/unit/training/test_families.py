"""One object for each family that is trained, and nobody else asks which one it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from slipstream.models.drafts.hparams import DraftFamily
from slipstream.training.families.table import FAMILIES, family_for
from slipstream.training.session import TrainingTarget, start_net
from tests.support.paths import REPOSITORY
from tests.support.training import fixed_parts, tiny_settings, tiny_target

TRAINING = REPOSITORY / "src/slipstream/training"


def distinctions(path: Path) -> Iterator[str]:
    """Places in a module that tell one family from others."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        is_name = isinstance(node, ast.Constant) and node.value in get_args(DraftFamily)
        is_check = isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
        if is_name or (is_check and "Hparams" in ast.unparse(node)):
            yield f"{path.name}:{node.lineno}"  # type: ignore[attr-defined]  # both kinds have one


def test_every_family_of_nets_can_be_trained() -> None:
    assert set(FAMILIES) == set(get_args(DraftFamily))
    assert all(name == family.name for name, family in FAMILIES.items())


@pytest.mark.parametrize("name", get_args(DraftFamily))
def test_a_net_that_is_made_is_its_familys_own(name: DraftFamily, tmp_path: Path) -> None:
    target: TrainingTarget = tiny_target(tmp_path)
    settings = tiny_settings(name)
    net = start_net(settings, target, fixed_parts(settings))
    assert family_for(net.hparams) is FAMILIES[name]


def test_only_a_familys_own_module_names_it() -> None:
    modules = [path for path in TRAINING.rglob("*.py") if path.parent.name != "families"]
    assert [place for path in modules for place in distinctions(path)] == []
