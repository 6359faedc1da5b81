// Package lab names what the lab builds, so that `go mod tidy` keeps exactly that in go.mod and go.sum.
package lab

import _ "k8s.io/kubernetes/cmd/kubelet/app"
