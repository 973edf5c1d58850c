"""What is kept between runs: action keys, action cache, blobs, task states, results."""
