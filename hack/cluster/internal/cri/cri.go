// Package cri asks the node's container runtime which sandboxes it has.
package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is one pod sandbox that runs.
type Sandbox struct {
	// Node is the name of the node.
	Node      string `json:"node"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	ID        string `json:"id"`
	// PID is the sandbox's first process, as the machine counts.
	PID int `json:"pid"`
	// NetNS is the pod's network namespace as a path of the machine. Empty: the pod uses the node's.
	NetNS string   `json:"netns,omitempty"`
	IPs   []string `json:"ips,omitempty"`
}

// Client is a connection to a runtime's socket.
type Client struct {
	conn    *grpc.ClientConn
	runtime runtime.RuntimeServiceClient
}

// Dial prepares a connection; nothing is sent before the first question.
func Dial(socket string) (*Client, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the container runtime: %w", err)
	}
	return &Client{conn: conn, runtime: runtime.NewRuntimeServiceClient(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Ready is nil once the runtime answers.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.runtime.Version(ctx, &runtime.VersionRequest{})
	return err
}

// Sandboxes lists the sandboxes that run on a node. Paths of the node are made paths of the machine by putting nodeRoot before them.
func (c *Client) Sandboxes(ctx context.Context, node, nodeRoot string) ([]Sandbox, error) {
	list, err := c.runtime.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{
		Filter: &runtime.PodSandboxFilter{State: &runtime.PodSandboxStateValue{State: runtime.PodSandboxState_SANDBOX_READY}},
	})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var sandboxes []Sandbox
	for _, item := range list.Items {
		status, err := c.runtime.PodSandboxStatus(ctx, &runtime.PodSandboxStatusRequest{PodSandboxId: item.Id, Verbose: true})
		if err != nil {
			return nil, fmt.Errorf("ask for sandbox %s: %w", item.Id, err)
		}
		s, err := sandbox(status, nodeRoot)
		if err != nil {
			return nil, fmt.Errorf("read sandbox %s: %w", item.Id, err)
		}
		s.Node = node
		sandboxes = append(sandboxes, s)
	}
	return sandboxes, nil
}

// sandbox reads the verbose part as containerd writes it. Without it there is no namespace to report, so that is an error.
func sandbox(r *runtime.PodSandboxStatusResponse, nodeRoot string) (Sandbox, error) {
	meta := r.Status.Metadata
	s := Sandbox{Namespace: meta.GetNamespace(), Name: meta.GetName(), UID: meta.GetUid(), ID: r.Status.Id}
	if network := r.Status.Network; network.GetIp() != "" {
		s.IPs = append(s.IPs, network.Ip)
		for _, more := range network.AdditionalIps {
			s.IPs = append(s.IPs, more.Ip)
		}
	}
	var info struct {
		PID         int `json:"pid"`
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string } `json:"namespaces"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil {
		return Sandbox{}, fmt.Errorf("verbose status: %w", err)
	}
	s.PID = info.PID
	for _, ns := range info.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" && ns.Path != "" {
			s.NetNS = nodeRoot + throughRun(ns.Path)
		}
	}
	return s, nil
}

// throughRun avoids /var/run: it is an absolute link to /run, which below /proc/PID/root leads back to the machine's own /run.
func throughRun(path string) string {
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		return "/run/" + rest
	}
	return path
}
