"""What the pytest plugin does once a test asks for a case: nothing here is loaded before."""
