"""The pipeline, one file per stage."""
