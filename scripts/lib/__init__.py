"""Helpers that several ops of this workspace share."""
