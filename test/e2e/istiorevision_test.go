package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	// canary is the revision of a second control plane. It is the same build as the first.
	canary = "canary"
	// canaryImage has the same programs as istioImage.
	canaryImage = "localhost/proxyv2:canary"
)

// Istio is upgraded by revisions: a second control plane comes, the profile names it and another image, and then the first again. Proxies of
// both control planes are members of one mesh.
func (o outside) revisions(t *testing.T) {
	m := o.open(t)
	o.installIstiod(t, "istiod-"+canary, "--set", "revision="+canary, "--set", "pilot.cni.enabled=true", "--set", "pilot.resources.requests.cpu=10m")
	t.Cleanup(func() { o.helm(t, "uninstall", "istiod-"+canary, "-n", "istio-system", "--ignore-not-found", "--wait") })
	for _, c := range []struct{ revision, image, istiod string }{
		{canary, canaryImage, "istiod-" + canary},
		{"", istioImage, "istiod"},
	} {
		held := m.hold(t)
		m.upgrade(t, "to "+c.istiod, map[string]any{"image": c.image, "revision": c.revision}, func() {})
		for _, h := range held {
			h.say(t, "after the upgrade to "+c.istiod)
			must(t, h.told.Close())
		}
		for _, pod := range m.pods {
			m.wantControlPlane(t, pod, c.istiod, c.image)
		}
	}
	m.wantNothingLost(t)
}

// wantControlPlane waits until a pod's only proxy is of an image, and has a control plane for its certificates and its configuration.
func (m managed) wantControlPlane(t *testing.T, pod *corev1.Pod, istiod, image string) {
	t.Helper()
	eventually(t, "the only proxy of "+pod.Name, func(ctx context.Context) error {
		_, err := m.findContainerPID(ctx, pod, managedProxy)
		return err
	})
	environ := "\x00" + m.proc(t, pod, managedProxy, "environ")
	for _, want := range []string{"\x00CA_ADDR=" + istiod + ".istio-system.svc:15012\x00", `"discoveryAddress":"` + istiod + `.istio-system.svc:15012"`} {
		if !strings.Contains(environ, want) {
			t.Errorf("the proxy of %s has not %q in its environment %q", pod.Name, want, environ)
		}
	}
	m.awaitSidecar(t, pod.Name, func(status map[string]any) error {
		if status["image"] != image {
			return fmt.Errorf("it says %v, want the image %s", status, image)
		}
		return nil
	})
}
