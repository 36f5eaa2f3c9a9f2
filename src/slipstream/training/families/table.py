"""All families that can be trained. A new one is a module beside this one, and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.models.drafts.hparams import DraftFamily, DraftHparams, family_of
from slipstream.training.families.dflash import DFlashFamily
from slipstream.training.families.dflash2 import DFlash2Family
from slipstream.training.families.dspark import DSparkFamily
from slipstream.training.families.eagle3 import Eagle3Family
from slipstream.training.families.family import AnyFamily
from slipstream.training.families.mtp import MtpFamily

_ALL: tuple[AnyFamily, ...] = (
    Eagle3Family(),
    MtpFamily(),
    DFlashFamily(),
    DFlash2Family(),
    DSparkFamily(),
)
FAMILIES: Mapping[DraftFamily, AnyFamily] = {family.name: family for family in _ALL}


def family_for(hparams: DraftHparams) -> AnyFamily:
    """The family of a net."""
    return FAMILIES[family_of(hparams)]
