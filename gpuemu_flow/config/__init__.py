"""The configuration, gpuemu.toml: its model, loading, merging, positions and errors."""
