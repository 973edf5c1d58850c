"""Warp operations."""

from __future__ import annotations

from gpuemu_flow.emulator.effects.effect import Effect

EFFECTS: dict[str, Effect] = {}
