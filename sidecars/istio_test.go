package sidecars

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/profile"
)

// meshed is what a fakeNode has of Istio.
type meshed struct {
	mesh, values string
	objects      []istio.ProxyConfig
	fails        error             // of reads of the control plane
	roots        map[string][]byte // the ConfigMap with the root certificate
	revoked      map[string][]byte // the one with revoked certificates
	labels       map[string]string // of the pod
	annotations  map[string]string
	closed       []int32 // admin ports of Envoys that were told to close their listeners
	asked        int     // for pods and control planes, which are requests
}

func (n *fakeNode) ConfigMapOf(_ context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.meshed.asked++
	data := map[string]map[string]string{
		"istio-system/istio-1-31": {"mesh": n.meshed.mesh}, "istio-system/istio-sidecar-injector-1-31": {"values": n.meshed.values},
	}[namespace+"/"+name]
	return &corev1.ConfigMap{Data: data}, n.meshed.fails
}

func (n *fakeNode) ProxyConfigs(context.Context) ([]istio.ProxyConfig, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.meshed.objects, n.meshed.fails
}

func (n *fakeNode) ConfigMap(_ context.Context, namespace string, want v1alpha1.ConfigMapKeys) (map[string][]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	found := map[string]map[string][]byte{"shop/istio-ca-root-cert": n.meshed.roots, "shop/istio-ca-crl": n.meshed.revoked}[namespace+"/"+want.Name]
	if found == nil {
		return nil, home.ErrNoConfigMap
	}
	return maps.Clone(found), nil
}

func (n *fakeNode) Close(_ context.Context, _ podnet.Sandbox, adminPort int32) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.meshed.closed = append(n.meshed.closed, adminPort)
	return n.call("close")
}

// withMesh gives the node a control plane, and a profile with its proxy.
func withMesh(n *fakeNode) {
	n.sharePorts()
	n.vault.lifetime = time.Hour
	n.meshed = meshed{
		mesh:   "trustDomain: cluster.local\ndefaultConfig: {discoveryAddress: 'istiod.istio-system.svc:15012'}\n",
		values: `{"global":{"istioNamespace":"istio-system","pilotCertProvider":"istiod","proxy":{"logLevel":"warning"},"sds":{"token":{"aud":"istio-ca"}}}}`,
		roots:  map[string][]byte{"root-cert.pem": []byte("root-1")},
	}
	spec := &n.profile.Spec
	spec.Istio = &istio.ControlPlane{Revision: "1-31", Namespace: "istio-system"}
	spec.StopSignal, spec.Args, spec.Files, spec.Readiness.HTTPGet = "", nil, nil, nil
	spec.Env = []v1alpha1.EnvVar{{Name: "POD_NAME", Value: "mine"}}
}

// meshedly runs f with an agent whose one pod has had a second to get Istio's proxy. prepare, if not nil, changes the node before.
func meshedly(t *testing.T, prepare func(n *fakeNode), f func(t *testing.T, n *fakeNode, agent func() (*Manager, func()), m *Manager)) {
	t.Helper()
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		withMesh(n)
		if prepare != nil {
			prepare(n)
		}
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		f(t, n, agent, m)
	})
}

// host returns the node's path of what the first proxy sees at a path.
func (n *fakeNode) host(t *testing.T, at string, readOnly bool) string {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.containers["c001"].spec.Mounts {
		if rest, below := strings.CutPrefix(at, m.Container); below && m.Container != "/" && m.ReadOnly == readOnly && (rest == "" || rest[0] == '/') {
			return filepath.Join(m.Host, rest)
		}
	}
	t.Fatalf("it sees nothing at %s, read-only %t: %v", at, readOnly, n.containers["c001"].spec.Mounts)
	return ""
}

func (n *fakeNode) mustRead(t *testing.T, at, want string) {
	t.Helper()
	text, err := os.ReadFile(n.host(t, at, true))
	if err != nil || !strings.Contains(string(text), want) {
		t.Errorf("the first proxy reads %q at %s, error %v; want %q", text, at, err, want)
	}
}

func TestIstio_newPod_proxyIsAsInjected(t *testing.T) {
	meshedly(t, func(n *fakeNode) { n.meshed.labels = map[string]string{"app": "cart"} }, func(t *testing.T, n *fakeNode, _ func() (*Manager, func()), m *Manager) {
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); !said.Labels {
			t.Errorf("the pod gets no label: %+v", said)
		}
		spec := n.containers["c001"].spec
		if path.Base(spec.Command[0]) != "pilot-agent" || !slices.Equal(spec.Args[:2], []string{"proxy", "sidecar"}) || spec.StopSignal != "TERM" || spec.Hash != n.profile.Spec.Hash() {
			t.Errorf("it is made from %+v", spec)
		}
		for _, want := range []string{"SIDECAR_EPOCH=0", "POD_NAME=mine", "POD_NAMESPACE=shop", "INSTANCE_IP=10.0.0.1"} {
			if !slices.Contains(spec.Env, want) {
				t.Errorf("the environment %q has no %s", spec.Env, want)
			}
		}
		n.mustRead(t, "/etc/istio/pod/labels", `app="cart"`)
		n.mustRead(t, "/var/run/secrets/tokens/istio-token", "token-1-u1-istio-ca")
		n.mustRead(t, "/var/run/secrets/istio/root-cert.pem", "root-1")
		for _, dir := range home.IstioWritable() {
			if err := os.WriteFile(filepath.Join(n.host(t, dir, false), "SDS"), nil, 0o600); err != nil {
				t.Error(err)
			}
		}
		if facts := m.Homes.Of(sandboxOf("u1").Key()).Epoch(0).Facts(); facts.StatusPort != 15020 || facts.AdminPort != 15000 {
			t.Errorf("it is asked by %+v", facts)
		}
	})
}

// A new root certificate is seen by the proxy that runs, and a new token under the name that pilot-agent reads.
func TestIstio_rotation_reachesRunningProxy(t *testing.T) {
	meshedly(t, nil, func(t *testing.T, n *fakeNode, _ func() (*Manager, func()), _ *Manager) {
		n.change(func() { n.meshed.roots = map[string][]byte{"root-cert.pem": []byte("root-2")} })
		n.after(20 * time.Second)
		n.mustRead(t, "/var/run/secrets/istio/root-cert.pem", "root-2")
		n.after(time.Hour)
		n.mustRead(t, "/var/run/secrets/tokens/istio-token", "token-2-u1-istio-ca")
		if len(n.containers) != 1 {
			t.Errorf("%d proxies were made", len(n.containers))
		}
	})
}

// A proxy does not start without what it needs. The ManagedProxy says what that is, and the proxy starts once it is there.
func TestIstio_somethingIsMissing_saysWhatAndStartsLater(t *testing.T) {
	for name, c := range map[string]struct {
		misses, mends func(*fakeNode)
		want          string
	}{
		"no control plane": {
			func(n *fakeNode) { n.meshed.fails = errors.New("away") },
			func(n *fakeNode) { n.meshed.fails = nil }, "read ConfigMap istio-system/istio-1-31: away",
		},
		"values that cannot be read": {
			func(n *fakeNode) { n.meshed.values = "{" }, withMesh, `control plane of Istio in namespace "istio-system", revision "1-31": `,
		},
		"no root certificate": {
			func(n *fakeNode) { n.meshed.roots = nil }, withMesh, `ConfigMap "istio-ca-root-cert" of the pod's namespace: it is not there`,
		},
		"other ports of the mesh": {
			func(n *fakeNode) { n.meshed.mesh += "proxyInboundListenPort: 16006\n" }, withMesh, "15001 (outbound) and 16006 (inbound): choose a profile",
		},
		"a DNS server that cannot be there twice": {
			func(n *fakeNode) {
				n.profile.Spec.Env = []v1alpha1.EnvVar{{Name: "ISTIO_META_DNS_CAPTURE", Value: "true"}}
			},
			func(n *fakeNode) { n.profile.Spec.Handover = profile.HandoverNone }, "choose a profile with update.handover.none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			meshedly(t, c.misses, func(t *testing.T, n *fakeNode, _ func() (*Manager, func()), m *Manager) {
				if said := n.mustSay(t, "u1", v1alpha1.Failed, false); !strings.Contains(said.Message, c.want) || len(n.containers) != 0 {
					t.Errorf("it says %+v, want %q", said, c.want)
				}
				n.change(func() { c.mends(n) })
				m.Notify("")
				n.after(20 * time.Second)
				n.mustSay(t, "u1", v1alpha1.Running, true)
			})
		})
	}
}

// By the signal alone pilot-agent has Envoy keep its listeners for as long as it runs.
func TestIstio_upgrade_oldEnvoyClosesItsListeners(t *testing.T) {
	meshedly(t, nil, func(t *testing.T, n *fakeNode, agent func() (*Manager, func()), m *Manager) {
		n.changeTo(m, 2)
		n.after(5 * time.Second)
		n.mustServe(t, []string{"u1"}, 2)
		first, second := m.Homes.Of(sandboxOf("u1").Key()).Epoch(0).Facts(), m.Homes.Of(sandboxOf("u1").Key()).Epoch(1).Facts()
		if second.StatusPort == 15020 || second.AdminPort == 15000 || second.AdminPort == 0 || !slices.Equal(n.meshed.closed, []int32{15000}) {
			t.Errorf("asked by %+v, then %+v; closed: %v", first, second, n.meshed.closed)
		}
		if want := []iptables.PortAlias{{From: 15020, To: uint16(second.StatusPort)}}; len(first.Proxy.Aliases) > 0 || !slices.Equal(second.Proxy.Aliases, want) {
			t.Errorf("others ask at %v, then %v, want nothing and %v", first.Proxy.Aliases, second.Proxy.Aliases, want)
		}
		n.change(func() { n.failures["close"] = errors.New("it hangs") })
		n.changeTo(m, 3)
		n.after(10 * time.Second)
		n.mustServe(t, []string{"u1"}, 3)
		if third := m.Homes.Of(sandboxOf("u1").Key()).Epoch(2).Facts(); third.StatusPort != 15020 || len(third.Proxy.Aliases) > 0 {
			t.Errorf("the third proxy: %+v", third)
		}
		if left, err := filepath.Glob(filepath.Join(m.Homes.Of(sandboxOf("u1").Key()).Path, "istio-*")); err != nil || len(left) != 1 {
			t.Errorf("left of the proxies: %v, %v", left, err)
		}
	})
}

// The next agent asks and reports as the one that made the proxy.
func TestIstio_agentRestarts_knowsWhatWasComputed(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		withMesh(n)
		n.meshed.annotations = map[string]string{"inject.istio.io/templates": "mine"}
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		first := n.mustSay(t, "u1", v1alpha1.Running, true)
		stop()
		n.change(func() { clear(n.said); n.meshed.fails = errors.New("away") })
		m, stop = agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		if next := n.mustSay(t, "u1", v1alpha1.Running, true); next != first || !strings.Contains(next.Message, "templates mine") {
			t.Errorf("said %+v, then %+v", first, next)
		}
	})
}

// What the pod's owner says about mTLS stays.
func TestIstio_ownersTLSMode_stays(t *testing.T) {
	for mode, want := range map[string]bool{"disabled": false, "istio": true} {
		meshedly(t, func(n *fakeNode) { n.meshed.labels = map[string]string{istio.TLSModeLabel: mode} }, func(t *testing.T, n *fakeNode, _ func() (*Manager, func()), _ *Manager) {
			if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Labels != want {
				t.Errorf("%s: label %t", mode, said.Labels)
			}
		})
	}
}

// What is said of a pod is bounded, whatever its owner writes: the agent holds it for every pod.
func TestIstio_longAnnotation_isSaidInShort(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	meshedly(t, func(n *fakeNode) { n.meshed.annotations = map[string]string{"inject.istio.io/templates": long} }, func(t *testing.T, n *fakeNode, _ func() (*Manager, func()), m *Manager) {
		said := n.mustSay(t, "u1", v1alpha1.Running, true)
		if facts := m.Homes.Of(sandboxOf("u1").Key()).Epoch(0).Facts(); len(said.Message) > v1alpha1.MaxMessage || len(facts.Aside) > v1alpha1.MaxMessage {
			t.Errorf("a message of %d bytes, of %d in the home", len(said.Message), len(facts.Aside))
		}
		n.change(func() { n.failures["create"] = errors.New(long) })
		n.changeTo(m, 2)
		n.after(time.Second)
		if said := n.said["u1"]; len(said.Message) > v1alpha1.MaxMessage || len(said.Failure) > v1alpha1.MaxMessage || len(said.Failure) == 0 {
			t.Errorf("a message of %d bytes, a failure of %d", len(said.Message), len(said.Failure))
		}
	})
}

// While the control plane's ConfigMaps cannot be used, a proxy that ends is followed by one with the last configuration that made a proxy ready, also
// in another pod and by the next agent. The ManagedProxy says so.
func TestIstio_controlPlaneUnusable_lastConfigurationIsUsed(t *testing.T) {
	for name, breaks := range map[string]func(*fakeNode){
		"it cannot be read":     func(n *fakeNode) { n.meshed.fails = errors.New("away") },
		"its text is broken":    func(n *fakeNode) { n.meshed.mesh = "{" },
		"it has other ports":    func(n *fakeNode) { n.meshed.mesh += "proxyInboundListenPort: 16006\n" },
		"its values are broken": func(n *fakeNode) { n.meshed.values = "{" },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				withMesh(n)
				m, stop := agent()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.change(func() { breaks(n) })
				n.end("c001", 1)
				n.after(5 * time.Second)
				said := n.mustSay(t, "u1", v1alpha1.Running, true)
				if said.Epoch == 0 || !strings.Contains(said.Message, "the last configuration that worked on this node") {
					t.Errorf("it says %+v", said)
				}
				stop()
				m, stop = agent()
				defer stop()
				m.Follow(sandboxOf("u2"))
				n.after(5 * time.Second)
				n.mustSay(t, "u2", v1alpha1.Running, true)
				n.change(func() { withMesh(n) })
				n.end(fmt.Sprintf("c%03d", n.next), 1)
				n.after(2 * time.Minute)
				if said := n.mustSay(t, "u2", v1alpha1.Running, true); said.Epoch == 0 || strings.Contains(said.Message, "the last configuration") {
					t.Errorf("once it can be used again it says %+v", said)
				}
			})
		})
	}
}

// An older proxy that is still ready is no news: what the newest one was computed from stays the last configuration that worked.
func TestIstio_olderProxyStaysReady_newestConfigurationIsKept(t *testing.T) {
	meshedly(t, nil, func(t *testing.T, n *fakeNode, _ func() (*Manager, func()), m *Manager) {
		n.change(func() { n.meshed.mesh += "enablePrometheusMerge: false\n" })
		m.Follow(sandboxOf("u2"))
		n.after(5 * time.Second)
		n.mustSay(t, "u2", v1alpha1.Running, true)
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		if got := m.Good.Istio("edge", *n.profile.Spec.Istio); got == nil || got.Mesh != n.meshed.mesh {
			t.Errorf("kept is %+v", got)
		}
	})
}
