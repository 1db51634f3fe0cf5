# conftest.py: lets the tests of torch_kvcache import what they share, and keeps them offline.
# SPDX-License-Identifier: Apache-2.0
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import quanto_help
import torch

quanto_help.use_no_compiler()
# The models here are so small that threads would only wait for each other.
torch.set_num_threads(1)
