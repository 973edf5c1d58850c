"""The language server of gpuemu.toml."""
