"""Run ops and references in workers, so that their crashes, hangs and false answers do no harm."""
