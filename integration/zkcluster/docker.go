package zkcluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// engine returns the client of the Docker engine. The first call also sets up what must be set up once in a
// process: it settles whether testcontainers' reaper can run, and removes what dead runs left.
var engine = func() func(context.Context) (*client.Client, error) {
	var (
		mu     sync.Mutex
		docker *client.Client
	)
	return func(ctx context.Context) (*client.Client, error) {
		mu.Lock()
		defer mu.Unlock()
		if docker != nil {
			return docker, nil
		}
		cli, err := client.New(client.FromEnv)
		if err != nil {
			return nil, fmt.Errorf("zkcluster: the settings for Docker in the environment: %w", err)
		}
		if _, err := cli.Ping(ctx, client.PingOptions{}); err != nil {
			return nil, fmt.Errorf("zkcluster: these tests run ZooKeeper in containers, and the Docker engine does not answer "+
				"(is it installed and started, and may this user talk to it?): %w", err)
		}
		if err := settleReaper(ctx, cli); err != nil {
			return nil, err
		}
		log.SetDefault(log.NewNoopLogger())
		if err := removeLeftovers(ctx, cli); err != nil {
			fmt.Fprintf(os.Stderr, "zkcluster: what earlier runs left cannot all be removed: %v\n", err)
		}
		docker = cli
		return docker, nil
	}
}()

// settleReaper switches testcontainers' reaper container off where its image is missing, since every start
// of a container would fail on it. This package cleans up by itself in any case.
func settleReaper(ctx context.Context, docker *client.Client) error {
	const disable = "TESTCONTAINERS_RYUK_DISABLED"
	if os.Getenv(disable) != "" {
		return nil
	}
	//nolint:staticcheck // deprecated for the inside of a package that cannot be imported
	_, err := docker.ImageInspect(ctx, testcontainers.ReaperDefaultImage)
	if errdefs.IsNotFound(err) {
		return os.Setenv(disable, "true")
	}
	return err
}

// A bridge is one Docker network of a cluster.
type bridge struct {
	docker *client.Client
	name   string
	id     string
	subnet netip.Prefix
}

// newBridge makes an internal network with a fixed subnet. Only on such a network does Docker let a container
// have a fixed address, which a server needs to come back to after a restart. Which subnets are free on this
// machine only Docker knows: it is asked to choose one for a network that is then made again with that subnet.
func newBridge(ctx context.Context, docker *client.Client, name string) (*bridge, error) {
	unlock, err := lockEngine(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	const attempts = 20
	for range attempts {
		var subnet netip.Prefix
		if subnet, err = freeSubnet(ctx, docker, name+"-probe"); err != nil {
			return nil, err
		}
		var made client.NetworkCreateResult
		made, err = docker.NetworkCreate(ctx, name, client.NetworkCreateOptions{
			Driver:   "bridge",
			Internal: true,
			Labels:   labels(),
			IPAM:     &network.IPAM{Config: []network.IPAMConfig{{Subnet: subnet}}},
		})
		if err == nil {
			return &bridge{docker: docker, name: name, id: made.ID, subnet: subnet}, nil
		}
		// Another process took the subnet meanwhile; every other reason stands.
		if !strings.Contains(strings.ToLower(err.Error()), "overlap") {
			break
		}
	}
	return nil, fmt.Errorf("making the network %s: %w", name, err)
}

func freeSubnet(ctx context.Context, docker *client.Client, name string) (subnet netip.Prefix, err error) {
	probe, err := docker.NetworkCreate(ctx, name, client.NetworkCreateOptions{Driver: "bridge", Internal: true, Labels: labels()})
	if err != nil {
		return subnet, fmt.Errorf("asking Docker for a free subnet: %w", err)
	}
	defer func() {
		_, removeErr := docker.NetworkRemove(ctx, probe.ID, client.NetworkRemoveOptions{})
		err = errors.Join(err, removeErr)
	}()
	seen, err := docker.NetworkInspect(ctx, probe.ID, client.NetworkInspectOptions{})
	if err != nil {
		return subnet, err
	}
	for _, config := range seen.Network.IPAM.Config {
		if config.Subnet.Addr().Is4() {
			return config.Subnet.Masked(), nil
		}
	}
	return subnet, fmt.Errorf("the network %s got no IPv4 subnet from Docker", name)
}

// host returns the address of server i. The first few of a subnet are left to Docker's gateway.
func (b *bridge) host(i int) netip.Addr {
	addr := b.subnet.Addr()
	for range 10 + i {
		addr = addr.Next()
	}
	return addr
}

// endpoint returns the settings that give a container its fixed address on the network.
func (b *bridge) endpoint(addr netip.Addr) *network.EndpointSettings {
	return &network.EndpointSettings{
		NetworkID:  b.id,
		IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: addr},
	}
}

func (b *bridge) connect(ctx context.Context, container string, addr netip.Addr) error {
	_, err := b.docker.NetworkConnect(ctx, b.id, client.NetworkConnectOptions{
		Container:      container,
		EndpointConfig: b.endpoint(addr),
	})
	return err
}

func (b *bridge) disconnect(ctx context.Context, container string) error {
	_, err := b.docker.NetworkDisconnect(ctx, b.id, client.NetworkDisconnectOptions{Container: container, Force: true})
	return err
}

func (b *bridge) remove(ctx context.Context) error {
	return exclusively(ctx, func() error {
		_, err := b.docker.NetworkRemove(ctx, b.id, client.NetworkRemoveOptions{})
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}
