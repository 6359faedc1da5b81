"""GPU models that a lab host can have: what PCI, NVML and the driver's support tables say about each.

models.json has names, memory and PCI ids of real boards; `branch_min`/`branch_max` (0: no end), `open` and `proprietary`
say which driver takes the GPU.
"""

import json
from pathlib import Path
from typing import Any

_FILE = json.loads((Path(__file__).parent / "models.json").read_text())
MODELS: dict[str, dict[str, Any]] = {
    name: {**_FILE["common"], **model} for name, model in _FILE["models"].items()
}
