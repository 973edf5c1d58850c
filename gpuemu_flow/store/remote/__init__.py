"""A cache that several machines share: its layout, transports and trusted entries."""
