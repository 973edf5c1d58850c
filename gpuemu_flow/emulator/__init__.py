"""Run compiled kernels on the CPU: from PTX to outputs and the findings of checks."""
