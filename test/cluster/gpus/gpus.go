// Package gpus is a device plugin of the kubelet that serves GPUs which aren't there, so that it counts, admits and
// hands out as with real ones.
package gpus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Resource is what they are counted as.
const Resource = "nvidia.com/gpu"

// Visible is the variable by which a container learns which GPUs it was given.
const Visible = "NVIDIA_VISIBLE_DEVICES"

// Broken is a file of the node. While it exists, the plugin rejects every pod, as one does whose GPUs don't answer.
const Broken = "/var/lib/gpus.broken"

// socket is the plugin's own in the kubelet's folder.
const socket = deviceplugin.DevicePluginPath + "signalbox-gpu.sock"

// Serve registers so many GPUs with the node's kubelet, and again whenever the kubelet starts again, until ctx is done.
func Serve(ctx context.Context, count int) error {
	for ctx.Err() == nil {
		_, err := os.Stat(deviceplugin.KubeletSocket)
		if err == nil {
			err = serveKubelet(ctx, count)
		}
		if err != nil && !os.IsNotExist(err) { // it has not started yet
			fmt.Fprintln(os.Stderr, "gpus:", err)
		}
		pause(ctx)
	}
	return nil
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(200 * time.Millisecond):
	}
}

// serveKubelet serves one kubelet until the plugin's own socket is gone: a starting kubelet removes all sockets. The
// kubelet's socket shows less: that of the next may have the same inode.
func serveKubelet(ctx context.Context, count int) error {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, &plugin{count: count})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer server.Stop()
	if err := register(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return err
		case <-time.After(200 * time.Millisecond):
			if _, err := os.Stat(socket); err != nil {
				return nil
			}
		}
	}
}

func register(ctx context.Context) error {
	connection, err := grpc.NewClient("unix://"+deviceplugin.KubeletSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = deviceplugin.NewRegistrationClient(connection).Register(ctx, &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: strings.TrimPrefix(socket, deviceplugin.DevicePluginPath),
		ResourceName: Resource, Options: &deviceplugin.DevicePluginOptions{},
	})
	if err != nil {
		return fmt.Errorf("registering with the kubelet: %w", err)
	}
	return nil
}

type plugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	count int
}

func (p *plugin) GetDevicePluginOptions(
	context.Context, *deviceplugin.Empty,
) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch tells the devices once: they never change.
func (p *plugin) ListAndWatch(_ *deviceplugin.Empty, stream deviceplugin.DevicePlugin_ListAndWatchServer) error {
	devices := make([]*deviceplugin.Device, 0, p.count)
	for i := range p.count {
		devices = append(devices, &deviceplugin.Device{ID: fmt.Sprintf("GPU-%d", i), Health: deviceplugin.Healthy})
	}
	if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate tells each container which GPUs are its own.
func (p *plugin) Allocate(
	_ context.Context, request *deviceplugin.AllocateRequest,
) (*deviceplugin.AllocateResponse, error) {
	if _, err := os.Stat(Broken); err == nil {
		return nil, errors.New("the GPUs don't answer")
	}
	response := &deviceplugin.AllocateResponse{}
	for _, c := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{Visible: strings.Join(c.DevicesIds, ",")},
		})
	}
	return response, nil
}
