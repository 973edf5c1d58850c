"""The pytest plugin's work, loaded only once a test asks for a case."""
