"""The C structures of draft nets, field by field as in csrc/draft*.hpp and csrc/candidates.hpp."""

from __future__ import annotations

import ctypes

from slipstream.kernels.structs import Matrices, Norm, Pass

MAX_CANDIDATES = 16
MAX_BLOCK_LEN = 32
WHOLE_BLOCK, CAUSAL = 0, 1
"""`Layer.plan` of a block net: what a row sees of its own block."""


class Drawing(ctypes.Structure):
    """`slipstream::Drawing`."""

    _fields_ = (
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
    )


class DraftRequest(ctypes.Structure):
    """`slipstream::DraftRequest`."""

    _fields_ = (
        ("drawing", Drawing),
        ("anchor", ctypes.c_int64),
        ("position", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("final_tokens", ctypes.c_void_p),
        ("num_slots", ctypes.c_int32),
        ("num_final_tokens", ctypes.c_int32),
        ("max_len", ctypes.c_int32),
        ("max_nodes", ctypes.c_int32),
        ("seat", ctypes.c_int32),
    )


class DraftRules(ctypes.Structure):
    """`slipstream::DraftRules`."""

    _fields_ = (
        ("least_score", ctypes.c_double),
        ("disagreement", ctypes.c_double),
        ("num_children", ctypes.c_int32),
        ("num_rivals", ctypes.c_int32),
    )


class DraftTrees(ctypes.Structure):
    """`slipstream::DraftTrees`."""

    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("stride", ctypes.c_int32),
    )


class DraftNet(ctypes.Structure):
    """`slipstream::DraftNet`; `pass` is a word of Python's."""

    _fields_ = (
        ("passes", Pass),
        ("fusion", Matrices),
        ("fusion_norm", Norm),
        ("context", ctypes.c_void_p),
        ("token_ids", ctypes.c_void_p),
        ("markov_in", ctypes.c_void_p),
        ("markov_out", Matrices),
        ("confidence", ctypes.c_void_p),
        ("confidence_scales", ctypes.c_void_p),
        ("embedding_norm", Norm),
        ("hidden_norm", Norm),
        ("joining", Matrices),
        ("newest_hidden", ctypes.c_void_p),
        ("newest_normed", ctypes.c_void_p),
        ("first_spare_slot", ctypes.c_int64),
        ("mask_token", ctypes.c_int64),
        ("rules", DraftRules),
        ("confidence_bias", ctypes.c_float),
        ("logit_scale", ctypes.c_float),
        ("logit_cap", ctypes.c_float),
        ("num_drawable", ctypes.c_uint32),
        ("num_taps", ctypes.c_int32),
        ("tap_size", ctypes.c_int32),
        ("seat_slots", ctypes.c_int32),
        ("block_len", ctypes.c_int32),
        ("first_draft_row", ctypes.c_int32),
        ("confidence_reads_markov", ctypes.c_int32),
        ("has_normed_residual", ctypes.c_int32),
        ("recycles_normed", ctypes.c_int32),
    )


class Committed(ctypes.Structure):
    """`slipstream::Committed`."""

    _fields_ = (
        ("slots", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("next_tokens", ctypes.c_void_p),
        ("first_row", ctypes.c_int64),
        ("first_position", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("seat", ctypes.c_int32),
        ("is_newest_known", ctypes.c_int32),
    )


class CommittedRows(ctypes.Structure):
    """`slipstream::CommittedRows`."""

    _fields_ = (
        ("requests", ctypes.c_void_p),
        ("taps", ctypes.c_void_p),
        ("num_requests", ctypes.c_int32),
    )
