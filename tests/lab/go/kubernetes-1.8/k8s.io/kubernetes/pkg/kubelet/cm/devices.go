// Package cm is Kubernetes' own device_plugin_handler.go and GetResources of its container_manager_linux.go; this
// file stands in for the rest of the container manager, which brings cadvisor and the cgroups with it.
package cm

import (
	"sync"

	"k8s.io/api/core/v1"
)

type containerManagerImpl struct {
	sync.RWMutex
	capacity            v1.ResourceList
	devicePluginHandler DevicePluginHandler
}

// Devices is a container manager that knows of nothing but devices.
type Devices struct{ containerManagerImpl }

// NewDevices is as NewContainerManager.
func NewDevices() (*Devices, error) {
	cm := &Devices{containerManagerImpl{capacity: v1.ResourceList{}}}
	updateDeviceCapacityFunc := func(updates v1.ResourceList) {
		cm.Lock()
		defer cm.Unlock()
		for k, v := range updates {
			if v.Value() <= 0 {
				delete(cm.capacity, k)
			} else {
				cm.capacity[k] = v
			}
		}
	}
	var err error
	cm.devicePluginHandler, err = NewDevicePluginHandlerImpl(updateDeviceCapacityFunc)
	return cm, err
}

// Start begins to serve device plugins.
func (cm *Devices) Start() error { return cm.devicePluginHandler.Start() }

// GetCapacity is what the node has of each device.
func (cm *Devices) GetCapacity() v1.ResourceList {
	cm.RLock()
	defer cm.RUnlock()
	all := v1.ResourceList{}
	for k, v := range cm.capacity {
		all[k] = v
	}
	return all
}
