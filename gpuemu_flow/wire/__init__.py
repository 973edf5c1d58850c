"""Wire protocol v1, shared by daemon and clients: envelope, tensors and the socket's path."""

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 512 << 20
"""Maximum size of a message in bytes. Clients refuse larger messages with an error, and the
daemon's transport refuses them unread."""
