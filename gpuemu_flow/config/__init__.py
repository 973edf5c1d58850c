"""gpuemu.toml: model, loading, merging, positions and errors."""
