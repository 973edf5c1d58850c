"""``python -m gpuemu_flow``."""

from gpuemu_flow.front import main

main()
