"""The stages of the pipeline, one module per stage."""
