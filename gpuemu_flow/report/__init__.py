"""Reports: their data, how they are built, and one writer per format."""
