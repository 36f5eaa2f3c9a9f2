"""What nets hold whose drafts are native calls."""

from __future__ import annotations

import ctypes
import weakref

import torch

from slipstream.kernels import structs
from slipstream.models.hparams import RotaryParams
from slipstream.models.layers.rotary import RotaryTable
from slipstream.models.native_net import NativeNet
from tests.support.native import native_kernels

HEAD_DIM = 8


def test_angles_of_native_calls_outlive_a_table_that_grows_elsewhere() -> None:
    """Drafts in torch (`rejection`, `logit_bias`) read the same table at later positions."""
    table = RotaryTable(RotaryParams(theta=1e4), HEAD_DIM)
    layers = (structs.Layer * 1)()
    net = NativeNet(native_kernels(), layers, [table], HEAD_DIM)
    net.cover(1)
    covered = weakref.ref(table.tables(0)[0])
    grown, _ = table.tables(100_000)
    net.cover(1)
    assert covered() is not None
    first = (ctypes.c_float * HEAD_DIM).from_address(layers[0].cosines)
    assert torch.equal(torch.tensor(list(first)), grown[0, 0])
