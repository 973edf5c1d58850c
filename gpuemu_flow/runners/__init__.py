"""How an op or a reference is run: in workers that may crash, hang or lie without harm."""
