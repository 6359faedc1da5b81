// Package lab names what the lab builds, so that `go mod tidy` keeps exactly that in go.mod and go.sum.
package lab

import (
	_ "k8s.io/component-base/logs/json/register" // the kubelet below 1.26 does not import its JSON logger by itself
	_ "k8s.io/kubernetes/cmd/kubelet/app"
)
