"""Runners of ops and references: workers that may crash, hang or lie without harm."""
