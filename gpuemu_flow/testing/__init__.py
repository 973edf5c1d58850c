"""The pytest plugin once a test asks for a case: nothing here is loaded before."""
