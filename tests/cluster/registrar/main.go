// registrar tells kubelet of a driver, as node-driver-registrar does, whose module the Go proxy does
// not have everywhere.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type server struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
}

func (s server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: s.name, Endpoint: s.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (s server) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		log.Fatalf("kubelet does not register %s: %s", s.name, status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	address := flag.String("csi-address", "/csi/csi.sock", "the driver's socket, here")
	endpoint := flag.String("kubelet-registration-path", "", "the driver's socket, on the host")
	flag.Parse()
	connection, err := grpc.NewClient("unix://"+*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	driver, err := csi.NewIdentityClient(connection).GetPluginInfo(
		context.Background(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		log.Fatal(err)
	}
	socket := filepath.Join("/registration", driver.GetName()+"-reg.sock")
	os.Remove(socket)
	syscall.Umask(0o077)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	grpcServer := grpc.NewServer()
	registration.RegisterRegistrationServer(grpcServer, server{name: driver.GetName(), endpoint: *endpoint})
	log.Fatal(grpcServer.Serve(listener))
}
