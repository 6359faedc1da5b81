"""docker: its facts, its images, and the check of a new daemon.json."""

import json
import os
from typing import Any, Dict, List, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.files import refuse_file, unexpected_result
from gpunode.agent.system import Message, below, glob_of, have, resolve, run, text_of, unrooted


def read_docker() -> Optional[Dict[str, Any]]:
    if not os.path.exists(below("/run/docker.sock")) or have("docker") is None:
        return None
    answer = run("docker", "info", "--format", "{{json .}}", timeout=10)
    try:
        info = json.loads(answer.out)
    except ValueError:
        raise OSError(answer.message) from None
    if not info.get("ServerVersion"):
        return None  # the socket is there, the daemon is not
    return {
        "version": info["ServerVersion"],
        "runtimes": sorted(info.get("Runtimes") or {}),
        "default_runtime": info.get("DefaultRuntime", ""),
        "cgroup_driver": info.get("CgroupDriver", ""),
        "containers_running": info.get("ContainersRunning", 0),
        "live_restore": info.get("LiveRestoreEnabled") is True,
        "v1_containers": v1_containers(info.get("DockerRootDir") or "/var/lib/docker"),
    }


def v1_containers(root: str) -> List[str]:
    """Names of the containers with a volume of nvidia-docker 1, which only its plugin can mount."""
    if have("nvidia-docker-plugin") is None:
        return []
    names = []
    for path in glob_of(root + "/containers/*/config.v2.json"):
        config = json.loads(text_of(path) or "{}")
        if any(
            mount.get("Driver") == "nvidia-docker" for mount in (config.get("MountPoints") or {}).values()
        ):
            names.append(config.get("Name", "").lstrip("/"))
    return sorted(names)


def docker_image(reference: str) -> Optional[str]:
    if not os.path.exists(below("/run/docker.sock")):
        return None
    answer = run("docker", "image", "inspect", "--format", "{{.Id}}", reference)
    return None if answer.status else answer.out.strip()


def check_docker(path: str, temporary: str, expected: Optional[Message]) -> None:
    try:
        old, new = text_of(resolve(path)) or "", text_of(unrooted(temporary)) or ""
        wrong = docker_differences(old if old.strip() else "{}", new, expected)
    except ValueError as error:
        raise Failure("check-failed", "%s would not be JSON: %s" % (path, error)) from None
    if wrong:
        raise unexpected_result("dockerd", path, wrong)
    answer = run("dockerd", "--validate", "--config-file", temporary)
    if answer.status in (0, 127) or "unknown flag: --validate" in answer.err:  # docker has it since 23.0
        return
    refuse_file(path, temporary, "dockerd", answer)


def docker_differences(before: str, after: str, expected: Optional[Message]) -> List[str]:
    old, new = json.loads(before.lstrip("\ufeff")), json.loads(after.lstrip("\ufeff"))
    if expected is None:
        return []
    wrong = []
    default = expected["default"] or old.get("default-runtime")
    if new.get("default-runtime") != default:
        wrong.append("its default runtime would be %s, not %s" % (new.get("default-runtime"), default))
    if expected["runtime"] not in (new.get("runtimes") or {}):
        wrong.append("it would not have the runtime " + expected["runtime"])

    own = (expected["runtime"], *expected.get("moved", ()))

    def rest(text: str) -> List[Any]:
        """The members that must stay as they are; as pairs, since a key may occur twice."""
        left = []
        for key, value in json.loads(text.lstrip("\ufeff"), object_pairs_hook=list):
            if key == "runtimes":
                value = [runtime for runtime in value or [] if runtime[0] not in own]
            if key != "default-runtime" and (key, value) != ("runtimes", []):
                left.append((key, value))
        return left

    olds, news = rest(before), rest(after)
    return wrong + ["%s would change" % pair[0] for pair in olds + news if (pair in olds) != (pair in news)]
