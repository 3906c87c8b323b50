"""Print the measurements of a file, one on a line."""

import sys
from pathlib import Path

sys.stdout.write("\n".join(Path(sys.argv[1]).read_text(encoding="utf-8").split(",")) + "\n")
