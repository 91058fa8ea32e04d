package kernel

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/test/kerneltest"
)

func TestPortsOnWhichOthersCanReachAnApplication(t *testing.T) {
	ns, _ := kerneltest.NewPod(t)
	const proxy = 1337
	for _, l := range []struct {
		address string
		user    int
	}{
		{"0.0.0.0:9090", 1000},
		{"[::]:8080", 1000},
		{"0.0.0.0:7000", 0},
		{"127.0.0.1:7001", 1000},
		{"127.8.0.1:7002", 1000},
		{"[::1]:7003", 1000},
		{"[::]:15006", proxy},
		{"0.0.0.0:15021", proxy},
		{"[::ffff:127.0.0.1]:7004", 1000},
	} {
		go kerneltest.Answer(kerneltest.ListenTCP(t, ns, kerneltest.Owner{UID: l.user, GID: l.user}, false, l.address), "x")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got, err := namespaces(t).Listening(ctx, podnet.Place{Path: ns.Path()}, func(uid uint32) bool { return uid == proxy })
	if d := cmp.Diff([]uint16{7000, 8080, 9090}, got); d != "" || err != nil {
		t.Errorf("error %v\n%s", err, d)
	}
}

func TestUnheard_realSockets_areFound(t *testing.T) {
	ns, _ := kerneltest.NewPod(t)
	for _, address := range []string{"127.0.0.1:15001", "[::]:15006", "0.0.0.0:80"} {
		go kerneltest.Answer(kerneltest.ListenTCP(t, ns, kerneltest.Owner{UID: 1337, GID: 1337}, false, address), "x")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got, err := namespaces(t).Unheard(ctx, podnet.Place{Path: ns.Path()}, []uint16{15001, 15006, 15008})
	if d := cmp.Diff([]uint16{15008}, got); d != "" || err != nil {
		t.Errorf("error %v\n%s", err, d)
	}
	if got, err := namespaces(t).Unheard(ctx, podnet.Place{Path: ns.Path()}, []uint16{15006}); len(got) > 0 || err != nil {
		t.Errorf("all are heard: %v, %v", got, err)
	}
}
