package node

import (
	"os"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/test/kerneltest"
)

// migrates returns the kernel's setting of a namespace.
func migrates(t *testing.T, ns *netns.NS) (setting string) {
	t.Helper()
	err := ns.Inside(func() error {
		text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_migrate_req")
		setting = strings.TrimSpace(string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return setting
}

func TestMove_pod_isSetThereAlone(t *testing.T) {
	t.Parallel()
	pod, world := kerneltest.NewPod(t)
	q := asker{namespaces: namespaces(t)}
	for _, ns := range []*netns.NS{pod, pod, kerneltest.NewWithUsers(t)} {
		identity, err := ns.Identity()
		if err != nil {
			t.Fatal(err)
		}
		switch err := q.Move(t.Context(), podnet.Sandbox{NetNS: ns.Path()}); {
		case identity.Cookie == 0 && err != nil:
			continue
		case identity.Cookie == 0 || err != nil:
			t.Fatalf("error %v", err)
		}
		if in, out := migrates(t, ns), migrates(t, world); in != "1" || out != "0" {
			t.Errorf("it is %s in the pod, and %s beside it", in, out)
		}
	}
	if err := q.Move(t.Context(), podnet.Sandbox{NetNS: "/no/such/namespace"}); err == nil {
		t.Error("a namespace that is gone is no error")
	}
}
