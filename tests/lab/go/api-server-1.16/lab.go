// Package lab names what the lab builds, so that `go mod vendor` copies exactly that.
package lab

import (
	_ "k8s.io/kube-openapi/cmd/openapi-gen" // its results are in no module
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler" // in the same module, of the same release
	_ "k8s.io/kubernetes/cmd/kubelet"
)
