"""`python -m gpunode` is `gpunode`."""

from gpunode.cli import main

main()
