package istio

import (
	"net"
	"sync"
	"testing"

	"istio.io/istio/pilot/pkg/config/kube/crd"
	fake "istio.io/istio/pilot/test/xds"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// istiodAt is where istiod serves, at the node's address, which is every pod's gateway.
const (
	nodeIP   = "10.244.1.1"
	istiodAt = nodeIP + ":15010"
)

// world is istiod's discovery on a node with pods, in namespaces of their own on one bridge.
type world struct {
	istiod   *fake.FakeDiscoveryServer
	node     *netns.NS
	ca       authority
	programs string // a directory
	pods     map[string]*meshPod
}

// newWorld starts istiod, with objects and configuration.
func newWorld(t *testing.T, objects, config string) *world {
	t.Helper()
	for _, program := range []string{"ip", "nft"} {
		kerneltest.ProgramPath(t, program)
	}
	w := &world{node: kerneltest.New(t), ca: newAuthority(t), programs: programs(t), pods: map[string]*meshPod{}}
	kerneltest.Shell(t, w.node, "ip link add br0 type bridge && ip link set br0 up && ip address add "+nodeIP+"/16 dev br0", "")
	w.istiod = fake.NewFakeDiscoveryServer(t, fake.FakeOptions{
		KubernetesObjectString: objects, ConfigString: config,
		ListenerBuilder: func() (net.Listener, error) {
			return kerneltest.ListenTCP(t, w.node, kerneltest.Owner{}, false, istiodAt), nil
		},
	})
	return w
}

// configure adds resources of Istio's for a test, or until the function that it returns removes them.
func (w *world) configure(t *testing.T, text string) (remove func()) {
	t.Helper()
	configs, _, err := crd.ParseInputs(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs {
		c.Domain = "cluster.local"
		if _, err := w.istiod.Store().Create(c); err != nil {
			t.Fatal(err)
		}
	}
	var once sync.Once
	remove = func() {
		once.Do(func() {
			for _, c := range configs {
				if err := w.istiod.Store().Delete(c.GroupVersionKind, c.Name, c.Namespace, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	t.Cleanup(remove)
	return remove
}
