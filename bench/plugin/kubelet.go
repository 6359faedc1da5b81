// What a kubelet does with one device plugin, by the kubelet's own gRPC: it takes the registration, reads the list, allocates, and prints
// what that took, then the Unhealthy devices of each later list. Arguments: the folder of the sockets, the number of allocations. It ends
// with its standard input.
package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type registry struct {
	api.UnimplementedRegistrationServer
	came chan *api.RegisterRequest
}

func (r *registry) Register(_ context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	r.came <- request
	return &api.Empty{}, nil
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	folder := os.Args[1]
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	reporter, err := net.Listen("unix", filepath.Join(folder, "kubelet.sock"))
	check(err)
	server, registered := grpc.NewServer(), &registry{came: make(chan *api.RegisterRequest, 1)}
	api.RegisterRegistrationServer(server, registered)
	go server.Serve(reporter)
	request := <-registered.came
	out := json.NewEncoder(os.Stdout)
	out.Encode(map[string]any{"registered": float64(time.Now().UnixNano()) / 1e9})

	target := "unix:" + filepath.Join(folder, request.Endpoint)
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	check(err)
	plugin := api.NewDevicePluginClient(connection)
	stream, err := plugin.ListAndWatch(context.Background(), &api.Empty{})
	check(err)
	list, err := stream.Recv()
	check(err)
	var took []float64
	for i := 0; i < count; i++ {
		ids := []string{list.Devices[i%len(list.Devices)].ID}
		began := time.Now()
		_, err := plugin.Allocate(context.Background(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
		check(err)
		took = append(took, time.Since(began).Seconds()*1000)
	}
	sort.Float64s(took)
	out.Encode(map[string]any{"devices": len(list.Devices), "p50": took[count/2], "p99": took[count*99/100]})
	go func() {
		for list, err := stream.Recv(); err == nil; list, err = stream.Recv() {
			at, unhealthy := float64(time.Now().UnixNano())/1e9, []string{}
			for _, device := range list.Devices {
				if device.Health != api.Healthy {
					unhealthy = append(unhealthy, device.ID)
				}
			}
			out.Encode(map[string]any{"at": at, "unhealthy": unhealthy})
		}
	}()
	io.Copy(io.Discard, os.Stdin)
}
