"""Work on other machines, by an engine that exists: dask.distributed."""
