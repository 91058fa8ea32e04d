package nri

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"istio-pod-network-controller/internal/podnet"
)

// checkingHandler wants sandboxes that can be worked on.
type checkingHandler struct{ t *testing.T }

func (h checkingHandler) Ensure(_ context.Context, s podnet.Sandbox) (bool, error) {
	if s.Namespace == "" || s.Name == "" || s.UID == "" || s.Namespace == "kube-system" ||
		s.NetNS != "" && (!filepath.IsAbs(s.NetNS) || strings.Contains(s.NetNS+"/", "/../") || s.NetNS == "/host") {
		h.t.Errorf("the handler is given %+v", s)
	}
	return true, errors.New("refused")
}

// Whatever a runtime says of its pods and containers, the handler is given only sandboxes of pods that it may be asked about, with an absolute path to a namespace
// that is not the host's or without one, a pod is never refused before its container, and nothing panics.
func FuzzRuntime(f *testing.F) {
	for _, change := range []func(*api.PodSandbox){
		nil, func(p *api.PodSandbox) { p.Linux = nil }, func(p *api.PodSandbox) { p.Namespace = "kube-system" },
		func(p *api.PodSandbox) { p.Linux.Namespaces[1].Path = "/run/../proc/1/ns/net" }, func(p *api.PodSandbox) { p.Linux.Namespaces[1].Path = "/host" },
		func(p *api.PodSandbox) { p.Annotations[sourceAnnotation] = "file" },
	} {
		pod := event(change)
		request := &api.SynchronizeRequest{Pods: []*api.PodSandbox{pod, pod}, Containers: []*api.Container{{Id: "c", Name: "app", PodSandboxId: pod.Id}}}
		text, err := request.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r api.SynchronizeRequest
		if r.UnmarshalVT(text) != nil {
			return
		}
		p, _ := newTestPlugin(func(c *Config) {
			c.Handler, c.PassNamespaces = checkingHandler{t}, []string{"kube-system"}
			c.IsHost = func(path string) bool { return path == "/host" }
		})
		if _, err := p.Synchronize(t.Context(), r.GetPods(), r.GetContainers()); err != nil {
			t.Errorf("the list is refused: %v", err)
		}
		for range len(p.queue) {
			_, _ = p.Handler.Ensure(t.Context(), <-p.queue)
		}
		for i, pod := range r.GetPods() {
			if err := p.RunPodSandbox(t.Context(), pod); err != nil {
				t.Errorf("the sandbox is refused: %v", err)
			}
			var container *api.Container
			if i < len(r.GetContainers()) {
				container = r.GetContainers()[i]
			}
			_, treatment := p.readEvent(pod)
			if _, _, err := p.CreateContainer(t.Context(), pod, container); (err != nil) != (treatment == handle) {
				t.Errorf("treatment %d, error %v", treatment, err)
			}
		}
	})
}
