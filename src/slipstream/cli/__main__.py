"""`python -m slipstream.cli` is the `slipstream` command."""

from __future__ import annotations

from slipstream.cli.main import main

main()
