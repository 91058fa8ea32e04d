package cri

import (
	"strings"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
)

// containerd has the handler in the status, CRI-O only in the OCI spec's annotations.
func TestFind_runtimeClass_returnsItsHandler(t *testing.T) {
	for name, c := range map[string]struct{ runtime, uid, from, to string }{
		"containerd": {runtime: "containerd", uid: "cb8bef1c-6501-4aea-8bdd-f4f7ff377212"},
		"CRI-O": {
			runtime: "crio", uid: "11111111-0000-0000-0000-00000000000b",
			from: `"io.kubernetes.cri-o.RuntimeHandler":""`, to: `"io.kubernetes.cri-o.RuntimeHandler":"kata-qemu"`,
		},
	} {
		r := recorded(t, c.runtime)
		for _, s := range r.statuses {
			if c.from == "" {
				s.Status.RuntimeHandler = "kata-qemu"
			}
			s.Info[infoKey] = strings.ReplaceAll(s.Info[infoKey], c.from, c.to)
		}
		got, err := newFinder(t, "unix://"+serve(t, r)).Find(t.Context(), podnet.Sandbox{UID: c.uid})
		if err != nil || got.RuntimeHandler != "kata-qemu" {
			t.Errorf("%s: handler %q, error %v", name, got.RuntimeHandler, err)
		}
	}
}

// CRI-O writes a pod's annotations and labels over its own: with a made-up handler a pod would have no rules.
func TestFind_handlerForgedOnCRIO_isNotTaken(t *testing.T) {
	for name, forge := range map[string]func(*criv1.PodSandboxStatus){
		"an annotation": func(s *criv1.PodSandboxStatus) { s.Annotations[crioHandler] = "kata" },
		"a label":       func(s *criv1.PodSandboxStatus) { s.Labels[crioHandler] = "kata" },
	} {
		r := recorded(t, "crio")
		for _, s := range r.statuses {
			forge(s.Status)
			s.Info[infoKey] = strings.ReplaceAll(s.Info[infoKey], `"`+crioHandler+`":""`, `"`+crioHandler+`":"kata"`)
		}
		got, err := newFinder(t, "unix://"+serve(t, r)).Find(t.Context(), podnet.Sandbox{UID: "11111111-0000-0000-0000-00000000000b"})
		if err != nil || got.RuntimeHandler != "" {
			t.Errorf("%s: handler %q, error %v", name, got.RuntimeHandler, err)
		}
	}
}
