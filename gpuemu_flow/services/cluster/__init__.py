"""Run work on other machines with dask.distributed."""
