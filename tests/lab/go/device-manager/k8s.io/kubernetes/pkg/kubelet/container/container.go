// Package container stands in for pkg/kubelet/container, which brings every volume and cloud with it: what the device
// manager uses of it, field by field as there (runtime.go).
package container

// EnvVar is a variable of a container.
type EnvVar struct {
	Name  string
	Value string
}

// Mount is a folder or file of the host in a container.
type Mount struct {
	Name           string
	ContainerPath  string
	HostPath       string
	ReadOnly       bool
	SELinuxRelabel bool
}

// DeviceInfo is a device node of the host in a container.
type DeviceInfo struct {
	PathOnHost      string
	PathInContainer string
	Permissions     string
}

// Annotation of a container.
type Annotation struct {
	Name  string
	Value string
}

// RunContainerOptions is what a container is started with.
type RunContainerOptions struct {
	Envs    []EnvVar
	Mounts  []Mount
	Devices []DeviceInfo
}

// RuntimeCache is what pkg/kubelet/metrics counts pods with.
type RuntimeCache interface{ GetPods() ([]*Pod, error) }

// Pod of the runtime.
type Pod struct{ Containers []*struct{} }
