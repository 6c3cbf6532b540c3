"""Run the command line with ``python -m otel_assembly.cli``."""

import sys

from otel_assembly.cli import main

sys.exit(main())
