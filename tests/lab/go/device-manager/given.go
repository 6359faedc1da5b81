package main

import "k8s.io/kubernetes/pkg/kubelet/container"

func asGiven(envs []container.EnvVar, mounts []container.Mount, devices []container.DeviceInfo) *given {
	g := &given{Envs: map[string]string{}, Mounts: [][]string{}, Devices: [][]string{}}
	for _, e := range envs {
		g.Envs[e.Name] = e.Value
	}
	for _, m := range mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		g.Mounts = append(g.Mounts, []string{m.ContainerPath, m.HostPath, mode})
	}
	for _, d := range devices {
		g.Devices = append(g.Devices, []string{d.PathInContainer, d.PathOnHost, d.Permissions})
	}
	return g
}
