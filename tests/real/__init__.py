"""Tests on real Codex binaries, with a scripted model behind them."""
