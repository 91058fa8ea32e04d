package shared

import (
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// Why a pod with hostUsers: false is refused: HAProxy can enter its network namespace, which another user namespace owns, but the rules there
// do not know its group, which that user namespace does not have.
func TestHAProxy_userNamespace_groupIsUnknown(t *testing.T) {
	const outside = "10.9.9.9"
	p, m := serveReal(t)
	for _, c := range []struct {
		name   string
		ns     *netns.NS
		passes bool
	}{{"plain", kerneltest.New(t), true}, {"users", kerneltest.NewWithUsers(t), false}} {
		kerneltest.AddAddresses(t, c.ns, "lo", outside+"/32")
		kerneltest.Listen(t, c.ns, kerneltest.App, "world", 8080)
		p.join(t, m, c.name, c.ns)
		kerneltest.Shell(t, c.ns, "nft -f -", redirected)
		reply, err := kerneltest.Dial(t.Context(), c.ns, kerneltest.Proxy, "", outside+":8080")
		if passes := err == nil && reply.Banner == "world:8080" && reply.Dst.Port() == 8080; passes != c.passes {
			t.Errorf("%s: the proxy's group reaches the destination: %t, want %t; %+v, %v", c.name, passes, c.passes, reply, err)
		}
	}
}
