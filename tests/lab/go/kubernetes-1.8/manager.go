package main

import (
	"k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

// A container is given its devices whenever it is started, also when it is started again, and the kubelet keeps trying.
const admits = false

type manager struct{ *cm.Devices }

func newManager() (*manager, error) {
	m, err := cm.NewDevices()
	return &manager{m}, err
}

func (m *manager) start(func() []*v1.Pod) error { return m.Start() }

func (m *manager) report() *node {
	capacity := m.GetCapacity()
	return &node{capacity, capacity, nil}
}

func (m *manager) run(pod *v1.Pod, active func() []*v1.Pod) (map[string]*given, error) {
	all := map[string]*given{}
	for _, c := range append(append([]v1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		o, err := m.GetResources(pod, &c, active())
		if err != nil {
			return nil, err
		}
		all[c.Name] = asGiven(o.Envs, o.Mounts, o.Devices)
	}
	return all, nil
}
