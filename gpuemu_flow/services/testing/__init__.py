"""The implementation of the pytest plugin, loaded only when a test needs a case."""
