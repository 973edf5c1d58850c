"""Results as typed data: verdicts, failures, causes, figures."""
