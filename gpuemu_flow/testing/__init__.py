"""The work of the pytest plugin; it is loaded only when a test needs a case."""
