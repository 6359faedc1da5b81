package main

import (
	"k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/deviceplugin"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/kubernetes/plugin/pkg/scheduler/schedulercache"
)

// A pod is given its devices when it is admitted; one that cannot be given them fails.
const admits = true

type manager struct{ *deviceplugin.ManagerImpl }

// The API server has told of all pods.
type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

func newManager() (*manager, error) {
	m, err := deviceplugin.NewManagerImpl()
	return &manager{m}, err
}

func (m *manager) start(active func() []*v1.Pod) error { return m.Start(active, ready{}) }

func (m *manager) report() *node {
	capacity, gone := m.GetCapacity()
	return &node{capacity, capacity, gone}
}

func (m *manager) run(pod *v1.Pod, _ func() []*v1.Pod) (map[string]*given, error) {
	if err := m.Allocate(schedulercache.NewNodeInfo(), &lifecycle.PodAdmitAttributes{Pod: pod}); err != nil {
		return nil, err
	}
	all := map[string]*given{}
	for _, c := range append(append([]v1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		if o := m.GetDeviceRunContainerOptions(pod, &c); o != nil {
			all[c.Name] = asGiven(o.Envs, o.Mounts, o.Devices)
		}
	}
	return all, nil
}
