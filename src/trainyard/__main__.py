"""`python -m trainyard` is the command `trainyard`."""

import sys

from trainyard.cli.main import main

sys.exit(main())
