"""Storage between runs: action keys, action cache, blobs, task states, results."""
