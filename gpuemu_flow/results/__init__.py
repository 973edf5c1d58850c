"""Types for results: verdicts, failures, causes, figures, and whole reports."""
