"""The C structures of the kernels' interface, field by field as in csrc/*.hpp."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import numpy.typing as npt

FORMATS = {"BF16": 0, "Q8_0": 1, "Q4_0": 2, "Q4_1": 3}
INPUTS = {"bfloat16": 0, "int8": 1}
TO_FLOAT32, TO_BFLOAT16, ADD_TO_FLOAT32 = 0, 1, 2
KV_FLOAT32, KV_BFLOAT16, KV_INT8 = 0, 1, 2
GATES = {"silu": 0, "gelu_tanh": 1}
MAX_TILE_ROWS = 32
MAX_PLANS = 8
STAGES = (
    "embedding",
    "norms",
    "qkv",
    "rotary",
    "attention",
    "attention_output",
    "gate_up",
    "gate",
    "down",
    "head",
)
"""`slipstream::Stage`: the parts of a pass."""

StageTimes = npt.NDArray[np.int64]
"""[STAGES] nanoseconds, added up over passes."""


class Matrix(ctypes.Structure):
    """`slipstream::Matrix`."""

    _fields_ = (
        ("tiles", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("format", ctypes.c_int32),
        ("num_out", ctypes.c_int32),
        ("num_in", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
    )


class Product(ctypes.Structure):
    """`slipstream::Product`."""

    _fields_ = (
        ("matrix", Matrix),
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int32),
        ("store", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("upcoming", ctypes.c_void_p),
    )


class AttentionShape(ctypes.Structure):
    """`slipstream::AttentionShape`."""

    _fields_ = (
        ("num_heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("kv_format", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class AttentionPlan(ctypes.Structure):
    """`slipstream::AttentionPlan`; `tiles` is [num_tiles, 3] int64."""

    _fields_ = (
        ("tiles", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("num_tiles", ctypes.c_int32),
        ("window", ctypes.c_int32),
    )


class Attention(ctypes.Structure):
    """`slipstream::Attention`."""

    _fields_ = (
        ("shape", ctypes.POINTER(AttentionShape)),
        ("plan", ctypes.POINTER(AttentionPlan)),
        ("queries", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("q_stride", ctypes.c_int64),
        ("store", ctypes.c_int32),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
    )


class Norm(ctypes.Structure):
    """`slipstream::Norm`; all zero = no norm."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("eps", ctypes.c_float),
        ("size", ctypes.c_int32),
    )


class Projection(ctypes.Structure):
    """`slipstream::Projection`."""

    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("q_norm", Norm),
        ("k_norm", Norm),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
    )


class Matrices(ctypes.Structure):
    """`slipstream::Matrices`."""

    _fields_ = (
        ("parts", ctypes.c_void_p),
        ("num_parts", ctypes.c_int32),
        ("num_out", ctypes.c_int32),
    )


class Layer(ctypes.Structure):
    """`slipstream::Layer`."""

    _fields_ = (
        ("input_norm", Norm),
        ("q_norm", Norm),
        ("k_norm", Norm),
        ("attention_output_norm", Norm),
        ("mlp_norm", Norm),
        ("mlp_output_norm", Norm),
        ("qkv", Matrices),
        ("attention_output", Matrices),
        ("gate_up", Matrices),
        ("down", Matrices),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("tap", ctypes.c_void_p),
        ("plan", ctypes.c_int32),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
    )


class Pass(ctypes.Structure):
    """`slipstream::Pass`."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        ("plans", ctypes.c_void_p),
        ("embeddings", ctypes.c_void_p),
        ("final_norm", Norm),
        ("head", Matrices),
        ("tokens", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("logit_rows", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("embedding_tap", ctypes.c_void_p),
        ("hidden", ctypes.c_void_p),
        ("shape", AttentionShape),
        ("embedding_scale", ctypes.c_float),
        ("num_layers", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("num_logit_rows", ctypes.c_int32),
        ("hidden_size", ctypes.c_int32),
        ("intermediate_size", ctypes.c_int32),
        ("gate", ctypes.c_int32),
        ("stage_ns", ctypes.c_void_p),
    )


DRAW = struct.Struct("@7P2Qd5f4i4x")
"""`slipstream::Draw`; packed, because a step makes one per request."""

MAX_DRAW_COUNT = 64


class DrawCall(ctypes.Structure):
    """`slipstream::DrawCall`."""

    _fields_ = (
        ("draws", ctypes.c_void_p),
        ("token_ids", ctypes.c_void_p),
        ("probs", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("num_draws", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("count", ctypes.c_int32),
    )


class DeltaSpan(ctypes.Structure):
    """`slipstream::DeltaSpan`."""

    _fields_ = (
        ("first", ctypes.c_int64),
        ("num_rows", ctypes.c_int32),
        ("num_taken", ctypes.c_int32),
        ("source", ctypes.c_int32),
        ("target", ctypes.c_int32),
        ("first_snapshot", ctypes.c_int32),
        ("num_snapshots", ctypes.c_int32),
    )


class DeltaSnapshot(ctypes.Structure):
    """`slipstream::DeltaSnapshot`."""

    _fields_ = (("num_rows", ctypes.c_int32), ("state", ctypes.c_int32))


class Delta(ctypes.Structure):
    """`slipstream::Delta`."""

    _fields_ = (
        ("queries", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("decays", ctypes.c_void_p),
        ("rates", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("matrices", ctypes.c_void_p),
        ("spans", ctypes.c_void_p),
        ("snapshots", ctypes.c_void_p),
        ("num_spans", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
        ("key_dim", ctypes.c_int32),
    )
