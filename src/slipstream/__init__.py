"""Slipstream: LLM inference in which speculative decoding is the normal case."""

__version__ = "0.1.0"
