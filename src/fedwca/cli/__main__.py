"""Run the command line: `python -m fedwca.cli`."""

from fedwca.cli.entry import main

main()
