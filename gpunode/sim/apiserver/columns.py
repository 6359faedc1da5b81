"""The columns of each kind's table, as in kube-apiserver 1.36, and what makes the cells below them.

Source: pkg/printers/internalversion/printers.go. In a list of columns `+` marks one that is shown with `-o wide` only, `#`
one of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gpunode.sim.apiserver import cells
from gpunode.sim.apiserver.store import Object

DEFAULT = ("Name, Created At", cells.plain)  # of Roles and ClusterRoles, too
BINDING = ("Name, Role, Age, +Users, +Groups, +ServiceAccounts", cells.binding)
SHOWN: Mapping[str, tuple[str, Callable[[Object], list[Any]]]] = MappingProxyType(
    {
        "Node": (
            "Name, Status, Roles, Age, Version, +Internal-IP, +External-IP, +OS-Image, +Kernel-Version, +Container-Runtime",
            cells.node,
        ),
        "Pod": (
            "Name, Ready, Status, Restarts, Age, +IP, +Node, +Nominated Node, +Readiness Gates",
            cells.pod,
        ),
        "DaemonSet": (
            "Name, #Desired, #Current, #Ready, #Up-to-date, #Available, Node Selector, Age, +Containers, +Images, +Selector",
            cells.daemonset,
        ),
        "Deployment": (
            "Name, Ready, Up-to-date, Available, Age, +Containers, +Images, +Selector",
            cells.deployment,
        ),
        "Job": ("Name, Status, Completions, Duration, Age, +Containers, +Images, +Selector", cells.job),
        "Service": ("Name, Type, Cluster-IP, External-IP, Port(s), Age, +Selector", cells.service),
        "Event": (
            "Last Seen, Type, Reason, Object, +Subobject, +Source, Message, +First Seen, +Count, +Name",
            cells.event,
        ),
        "Namespace": ("Name, Status, Age", cells.namespace),
        "ConfigMap": ("Name, Data, Age", cells.config),
        "Secret": ("Name, Type, Data, Age", cells.secret),
        "ServiceAccount": ("Name, Age", cells.account),
        "PersistentVolumeClaim": (
            "Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, +VolumeMode",
            cells.claim,
        ),
        "RoleBinding": BINDING,
        "ClusterRoleBinding": BINDING,
        "Lease": ("Name, Holder, Age", cells.lease),
        "PodDisruptionBudget": (
            "Name, Min Available, Max Unavailable, #Allowed Disruptions, Age",
            cells.budget,
        ),
        "ResourceQuota": ("Name, Request, Limit, Age", cells.quota),
        "RuntimeClass": ("Name, Handler, Age", cells.runtime_class),
        "ValidatingAdmissionPolicy": ("Name, #Validations, ParamKind, Age", cells.policy),
        "ValidatingAdmissionPolicyBinding": ("Name, PolicyName, ParamRef, Age", cells.policy_binding),
        "ResourceSlice": ("Name, Node, Driver, Pool, Age", cells.slice_of_devices),
        "DeviceClass": ("Name, Age", cells.account),
    }
)
