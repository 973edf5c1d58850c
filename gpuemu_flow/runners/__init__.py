"""Runners of ops and references, in workers whose crashes, hangs and false answers do no harm."""
