"""What is in `ranks` runs under torchrun only; test_ranks.py sees to that."""

import os

collect_ignore = [] if "RANK" in os.environ else ["ranks"]
