"""Wire protocol v1, shared by daemon and clients: envelope, tensors and the socket's path."""

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 512 << 20
"""Larger messages are refused: by the clients with an error, by the daemon's transport unread."""
