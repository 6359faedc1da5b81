"""The vocabulary: Host, Facts, Desired, Change, Plan, Outcome, Event.

Frozen values, built once at the edge and passed by hand. Imports nothing else of gpunode but errors.
"""

from gpunode.errors import Layer
from gpunode.model.change import (
    Change,
    Checker,
    Expected,
    Flavour,
    ForgetHost,
    GpuLayout,
    InstallDriver,
    KernelModule,
    Layout,
    LoadImage,
    MigLayout,
    Packages,
    PackageSpec,
    Reboot,
    RemoveFile,
    RemoveImage,
    Runtime,
    SelinuxBoolean,
    Service,
    UninstallDriver,
    WriteFile,
)
from gpunode.model.disturbance import Disturbance, Disturbed
from gpunode.model.facts import (
    Containerd,
    Docker,
    Facts,
    File,
    Gpu,
    GpuContainer,
    GpuUser,
    InstalledRun,
    Kubelet,
    MigDevice,
    Module,
    Os,
    Package,
    PciDevice,
    Run,
    Trace,
    Unconfirmed,
    Unit,
    Watch,
)
from gpunode.model.host import (
    Cluster,
    ExpectedGpus,
    GateCommand,
    Host,
    Inventory,
    MigRule,
    PluginConfig,
    PluginImage,
    PluginPublish,
    PythonBuild,
    Repository,
    RunFile,
    SecondScheduler,
    Share,
    Ssh,
)
from gpunode.model.journal import Entry, PackageChange
from gpunode.model.outcome import (
    Event,
    Fault,
    Left,
    OnEvent,
    Outcome,
    Status,
    Title,
    Verdict,
)
from gpunode.model.plan import (
    Choice,
    Desired,
    DriverSpec,
    KubeletStart,
    Place,
    Plan,
    Source,
    StepPlan,
    UnitSetting,
)
