"""A server that ends at once."""

import sys

sys.stderr.write("no licence\n")
sys.exit(4)
