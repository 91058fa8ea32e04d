// Package runtimestandin is a container runtime that runs no containers of pods, for benches of the agent.
package runtimestandin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/netns"
)

// labelPodUID is set by the kubelet on every sandbox.
const labelPodUID = "io.kubernetes.pod.uid"

// Runtime is one node's container runtime, as far as the agent sees it: CRI's lists, verbose status and containers, and NRI as
// containerd has it. Its sandboxes have real network namespaces.
type Runtime struct {
	criv1.UnimplementedRuntimeServiceServer
	criv1.UnimplementedImageServiceServer
	Dir    string // with its sockets
	server *grpc.Server
	nri    *adaptation.Adaptation
	Calls  atomic.Int64 // of CRI

	mu         sync.Mutex
	sandboxes  map[string]*sandbox // by ID
	containers map[string]*container
	closed     []func() error
	Waits      []float64 // milliseconds for the agent, of each sandbox that was run; calls for others, which come one after the other, are part of it
}

type sandbox struct {
	pod       *corev1.Pod
	id, netns string
	created   time.Time
	mounted   *netns.NS
	answers   bool // whether its proxy is ready
}

// New starts a Runtime whose files are in a directory.
func New(dir string) (*Runtime, error) {
	r := &Runtime{Dir: dir, sandboxes: map[string]*sandbox{}, containers: map[string]*container{}}
	r.server = grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		r.Calls.Add(1)
		return handle(ctx, req)
	}))
	listener, err := net.Listen("unix", r.CRISocket())
	if err != nil {
		return nil, err
	}
	criv1.RegisterRuntimeServiceServer(r.server, r)
	criv1.RegisterImageServiceServer(r.server, r)
	go func() { _ = r.server.Serve(listener) }()
	none := filepath.Join(dir, "plugins") // which are not there
	update := func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		return nil, nil
	}
	r.nri, err = adaptation.New("scale", "1", r.synchronize, update, adaptation.WithSocketPath(r.NRISocket()),
		adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	if err != nil {
		return nil, err
	}
	return r, r.nri.Start()
}

// CRISocket is where it serves CRI.
func (r *Runtime) CRISocket() string { return filepath.Join(r.Dir, "cri.sock") }

// NRISocket is where it serves NRI.
func (r *Runtime) NRISocket() string { return filepath.Join(r.Dir, "nri.sock") }

// Stop ends the runtime and its sandboxes.
func (r *Runtime) Stop() error {
	r.nri.Stop()
	r.server.Stop()
	var err error
	for _, f := range r.closed {
		err = errors.Join(err, f())
	}
	for _, s := range r.all() {
		err = errors.Join(err, r.remove(s))
	}
	return err // processes of containers end with this one
}

// Add makes a pod's sandbox, with a network namespace and a path that leads to it as a runtime's does.
func (r *Runtime) Add(pod *corev1.Pod) error {
	_, err := r.add(pod)
	return err
}

func (r *Runtime) add(pod *corev1.Pod) (s *sandbox, err error) {
	s = &sandbox{pod: pod, id: HexID(string(pod.UID)), created: time.Now()}
	s.netns = filepath.Join(r.Dir, "netns-"+s.id[:16])
	if s.mounted, err = netns.New(); err != nil {
		return nil, err
	}
	if err := errors.Join(os.WriteFile(s.netns, nil, 0o600), unix.Mount(s.mounted.Path(), s.netns, "", unix.MS_BIND, "")); err != nil {
		return nil, fmt.Errorf("mount a network namespace: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes[s.id] = s
	return s, nil
}

// Run makes a pod's sandbox, and asks the agent through NRI before the sandbox's and each container's start, as containerd does.
func (r *Runtime) Run(ctx context.Context, pod *corev1.Pod) error {
	s, err := r.add(pod)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := r.nri.RunPodSandbox(ctx, &adaptation.RunPodSandboxRequest{Pod: s.event()}); err != nil {
		return err
	}
	wait := float64(time.Since(began).Microseconds()) / 1000
	r.mu.Lock()
	r.Waits = append(r.Waits, wait)
	r.mu.Unlock()
	for _, c := range s.pod.Spec.Containers {
		container := &adaptation.Container{Id: HexID(s.id + c.Name), PodSandboxId: s.id, Name: c.Name}
		if _, err := r.nri.CreateContainer(ctx, &adaptation.CreateContainerRequest{Pod: s.event(), Container: container}); err != nil {
			return err
		}
	}
	return nil
}

// End stops and removes a pod's sandbox, and says so through NRI.
func (r *Runtime) End(ctx context.Context, pod *corev1.Pod) error {
	r.mu.Lock()
	s := r.sandboxes[HexID(string(pod.UID))]
	r.mu.Unlock()
	if s == nil {
		return fmt.Errorf("pod %s has no sandbox", pod.Name)
	}
	return errors.Join(
		r.nri.StopPodSandbox(ctx, &adaptation.StopPodSandboxRequest{Pod: s.event()}),
		r.remove(s),
		r.nri.RemovePodSandbox(ctx, &adaptation.RemovePodSandboxRequest{Pod: s.event()}),
	)
}

func (r *Runtime) remove(s *sandbox) error {
	r.mu.Lock()
	delete(r.sandboxes, s.id)
	r.mu.Unlock()
	return errors.Join(unix.Unmount(s.netns, unix.MNT_DETACH), os.Remove(s.netns), s.mounted.Close())
}

func (r *Runtime) all() []*sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.sandboxes))
}

func (r *Runtime) synchronize(ctx context.Context, plugin adaptation.SyncCB) error {
	var pods []*adaptation.PodSandbox
	for _, s := range r.all() {
		pods = append(pods, s.event())
	}
	_, err := plugin(ctx, pods, nil)
	return err
}

// Version is CRI's.
func (r *Runtime) Version(context.Context, *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "scale", RuntimeApiVersion: "v1"}, nil
}

// ListPodSandbox is CRI's.
func (r *Runtime) ListPodSandbox(_ context.Context, req *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	resp := &criv1.ListPodSandboxResponse{}
	wanted := req.GetFilter().GetLabelSelector()[labelPodUID]
	for _, s := range r.all() {
		if wanted != "" && wanted != string(s.pod.UID) {
			continue
		}
		resp.Items = append(resp.Items, &criv1.PodSandbox{Id: s.id, Metadata: s.metadata(), CreatedAt: s.created.UnixNano(), Labels: s.labels()}) // ready
	}
	return resp, nil
}

// PodSandboxStatus is CRI's, always verbose.
func (r *Runtime) PodSandboxStatus(_ context.Context, req *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	s := r.sandboxes[req.GetPodSandboxId()]
	r.mu.Unlock()
	if s == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	info, err := s.info()
	return &criv1.PodSandboxStatusResponse{
		Status: &criv1.PodSandboxStatus{Id: s.id, Metadata: s.metadata(), CreatedAt: s.created.UnixNano(), Labels: s.labels()}, // ready
		Info:   map[string]string{"info": info},
	}, err
}

func (s *sandbox) metadata() *criv1.PodSandboxMetadata {
	return &criv1.PodSandboxMetadata{Name: s.pod.Name, Namespace: s.pod.Namespace, Uid: string(s.pod.UID)}
}

func (s *sandbox) labels() map[string]string {
	return map[string]string{labelPodUID: string(s.pod.UID), "io.kubernetes.pod.name": s.pod.Name, "io.kubernetes.pod.namespace": s.pod.Namespace}
}

func (s *sandbox) event() *adaptation.PodSandbox {
	return &adaptation.PodSandbox{
		Id: s.id, Name: s.pod.Name, Namespace: s.pod.Namespace, Uid: string(s.pod.UID), Labels: s.labels(),
		Annotations: map[string]string{"kubernetes.io/config.source": "api"},
		Linux:       &adaptation.LinuxPodSandbox{Namespaces: []*adaptation.LinuxNamespace{{Type: "network", Path: s.netns}}},
	}
}

// info is what containerd adds to a verbose status, of the size that it has.
func (s *sandbox) info() (string, error) {
	type values map[string]any
	text, err := json.Marshal(values{
		"pid": 0, "config": values{
			"dns_config": values{"servers": []string{"10.96.0.10"}}, "metadata": values{"uid": s.pod.UID},
			"log_directory": "/var/log/pods/" + string(s.pod.UID), "linux": values{"cgroup_parent": "/kubepods/pod" + string(s.pod.UID)},
		},
		"runtimeSpec": values{
			"linux":       values{"namespaces": []values{{"type": "pid"}, {"type": "network", "path": s.netns}}},
			"annotations": values{"filler": strings.Repeat("as much as there is ", 700)},
		},
	})
	return string(text), err
}

// HexID returns an ID as runtimes have them, always the same of a text.
func HexID(of string) string {
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:])
}

// Fingerprints returns, of each sandbox, its nftables with the handles that the kernel gives: whatever is written anew gets others.
func (r *Runtime) Fingerprints(ctx context.Context) (map[string][sha256.Size]byte, error) {
	out := map[string][sha256.Size]byte{}
	for _, s := range r.all() {
		text, err := exec.CommandContext(ctx, "nsenter", "--net="+s.netns, "nft", "--handle", "list", "ruleset").CombinedOutput()
		if err == nil && len(text) == 0 {
			err = errors.New("it has no rules")
		}
		if err != nil {
			return nil, fmt.Errorf("list the rules of sandbox %s: %w: %s", s.id, err, text)
		}
		out[s.id] = sha256.Sum256(text)
	}
	return out, nil
}
