// A kubelet's device manager by itself. It takes requests as lines of JSON and answers each with one:
//
//	{"do": "start", "pods": [...]}   begin, with these pods already here, as a kubelet that starts anew
//	{"do": "report"}                 what the node would report
//	{"do": "run", "pod": {...}}      what the containers of a pod are given; the pod stays
//	{"do": "end", "pod": {...}}      the pod is gone
//
// One file beside this one, manager.go, speaks to the manager of one Kubernetes minor.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"k8s.io/api/core/v1"
)

type request struct {
	Do   string
	Pod  *v1.Pod
	Pods []*v1.Pod
}

type answer struct {
	Error      string            `json:"error,omitempty"`
	Node       *node             `json:"node,omitempty"`
	Containers map[string]*given `json:"containers,omitempty"`
}

// node is what the node would report of resources that device plugins brought.
type node struct {
	Capacity    v1.ResourceList `json:"capacity"`
	Allocatable v1.ResourceList `json:"allocatable"`
	Gone        []string        `json:"gone"` // reported before, and no more
}

// given is what a container has of devices.
type given struct {
	Envs    map[string]string `json:"envs"`
	Mounts  [][]string        `json:"mounts"`  // in the container, on the host, "ro" or "rw"
	Devices [][]string        `json:"devices"` // in the container, on the host, permissions
}

type pods struct{ all []*v1.Pod }

func (p *pods) active() []*v1.Pod { return p.all }

func (p *pods) without(gone *v1.Pod) []*v1.Pod {
	var rest []*v1.Pod
	for _, pod := range p.all {
		if pod.UID != gone.UID {
			rest = append(rest, pod)
		}
	}
	return rest
}

func do(m *manager, here *pods, r request) (a answer, err error) {
	switch r.Do {
	case "start":
		here.all = r.Pods
		err = m.start(here.active)
	case "report":
		a.Node = m.report()
	case "run":
		here.all = append(here.without(r.Pod), r.Pod)
		if a.Containers, err = m.run(r.Pod, here.active); err != nil && admits {
			here.all = here.without(r.Pod) // failed at its admission: it is not tried again
		}
	case "end":
		here.all = here.without(r.Pod)
	default:
		err = fmt.Errorf("what is %q?", r.Do)
	}
	return a, err
}

func main() {
	flag.Parse()
	out := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr // 1.10 says there that it starts
	m, err := newManager()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	here := &pods{}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var r request
		var a answer
		err := json.Unmarshal(in.Bytes(), &r)
		if err == nil {
			a, err = do(m, here, r)
		}
		if err != nil {
			a.Error = err.Error()
		}
		out.Encode(a)
	}
}
