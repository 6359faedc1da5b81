"""MIG layouts: which instances a GPU is cut into, with the numbers that drivers give them."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

# the id of a profile's first GPU instance and its memory slices, by its compute slices, as drivers have them
_FIRST = {1: (7, 1), 2: (3, 2), 3: (1, 4), 4: (1, 4), 7: (0, 8)}


def devices(gpu: Mapping[str, Any], layout: Iterable[str]) -> list[dict[str, Any]]:
    """The MIG devices of a GPU (all its facts) for a list of profile names such as ["3g.40gb", "1g.10gb"]."""
    profiles = {profile["name"]: profile for profile in gpu["mig"]["profiles"]}
    made: list[dict[str, Any]] = []
    taken: dict[int, int] = {}
    for name in layout:
        profile = profiles[name]
        slices = profile["slices"]
        first, size = _FIRST[slices]
        nth = taken.get(slices, 0)
        taken[slices] = nth + 1
        gi = first + nth
        made.append(
            {
                "profile": name,
                "profile_id": profile["id"],
                "gi": gi,
                "ci": 0,
                "slices": slices,
                "start": nth * size,
                "size": size,
                "multiprocessors": profile["multiprocessors"],
                "memory_mib": profile["memory_mib"],
                "uuid": f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, gpu['uuid'] + str(gi))}",
            }
        )
    return made
