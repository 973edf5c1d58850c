"""A cache that several machines share: its layout, what carries it, and what is trusted of it."""
