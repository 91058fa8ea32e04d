package sidecars

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// vault is what a fakeNode has as secrets.
type vault struct {
	secret   map[string][]byte // nil is one that is missing
	tokens   int               // given out
	lifetime time.Duration
	fails    error // of requests for tokens
}

func (n *fakeNode) Secret(string, []string) (map[string][]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.vault.secret == nil {
		return nil, errors.New("it is not there")
	}
	return maps.Clone(n.vault.secret), nil
}

func (n *fakeNode) Token(_ context.Context, pod *corev1.Pod, want v1alpha1.ServiceAccountToken) ([]byte, time.Time, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.vault.fails != nil {
		return nil, time.Time{}, n.vault.fails
	}
	n.vault.tokens++
	return fmt.Appendf(nil, "token-%d-%s-%s", n.vault.tokens, pod.UID, want.Audience), time.Now().Add(n.vault.lifetime), nil
}

// withSecrets gives the node's profile a Secret, a token and a socket of the workload API.
func withSecrets(n *fakeNode) {
	n.vault = vault{secret: map[string][]byte{"tls.crt": []byte("crt-1"), "tls.key": []byte("key-1")}, lifetime: time.Hour}
	n.profile.Spec.Secrets = []v1alpha1.SecretSource{
		{Name: "tls", Secret: &v1alpha1.SecretKeys{SecretReference: v1alpha1.SecretReference{Name: "mesh"}}},
		{Name: "istio", ServiceAccountToken: &v1alpha1.ServiceAccountToken{Audience: "istio-ca", ExpirationSeconds: 3600}},
		{Name: "spire", WorkloadAPI: &v1alpha1.WorkloadAPI{HostDirectory: "/run/spire/agent-sockets"}},
	}
}

// secretly runs f with an agent whose one pod has had a second to get a proxy with secrets. prepare, if not nil, changes the node before.
func secretly(t *testing.T, prepare func(n *fakeNode), f func(t *testing.T, n *fakeNode, m *Manager)) {
	t.Helper()
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		withSecrets(n)
		if prepare != nil {
			prepare(n)
		}
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		f(t, n, m)
	})
}

// seen returns the files that a proxy sees in the directory of a secret, by the paths that the runtime mounts.
func (n *fakeNode) seen(t *testing.T, id, secret string) map[string]string {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	c, ok := n.containers[id]
	if !ok {
		t.Fatalf("there is no %s", id)
	}
	i := slices.IndexFunc(c.spec.Mounts, func(m sidecar.Mount) bool { return m.Container == profile.PathSecrets && m.ReadOnly })
	if i < 0 {
		t.Fatalf("%s has no secrets mounted read-only: %v", id, c.spec.Mounts)
	}
	dir := filepath.Join(c.spec.Mounts[i].Host, secret)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Error(err)
		}
		out[e.Name()] = string(text)
	}
	return out
}

func (n *fakeNode) mustSee(t *testing.T, id, secret string, want map[string]string) {
	t.Helper()
	if got := n.seen(t, id, secret); !maps.Equal(got, want) {
		t.Errorf("%s sees %q as %s, want %q", id, got, secret, want)
	}
}

func files(pairs ...string) map[string]string {
	out := map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		out[pair[0]] = pair[1]
	}
	return out
}

func TestGrantSecrets_sources_areMounted(t *testing.T) {
	secretly(t, nil, func(t *testing.T, n *fakeNode, m *Manager) {
		n.mustSay(t, "u1", v1alpha1.Running, true)
		n.mustSee(t, "c001", "tls", files("tls.crt", "crt-1", "tls.key", "key-1"))
		n.mustSee(t, "c001", "istio", files("token", "token-1-u1-istio-ca"))
		want := sidecar.Mount{Host: "/run/spire/agent-sockets", Container: profile.PathSecrets + "/spire", ReadOnly: true}
		if got := n.containers["c001"].spec.Mounts; !slices.Contains(got, want) {
			t.Errorf("mounts %v", got)
		}
		for _, mount := range n.containers["c001"].spec.Mounts {
			if own := strings.HasPrefix(mount.Host, m.Homes.Root); mount.Relabel != own {
				t.Errorf("SELinux label of %s changed: %t", mount.Host, mount.Relabel)
			}
		}
		home := m.Homes.Of(podnet.Key{PodUID: "u1", Sandbox: "sandbox-u1"})
		err := filepath.WalkDir(home.Epoch(0).Secrets(), func(path string, d os.DirEntry, err error) error {
			info, errInfo := d.Info()
			if err = errors.Join(err, errInfo); err == nil && d.Type() != os.ModeSymlink && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has the mode %s", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// New files reach a proxy without a new one, and without a call to the runtime.
func TestRenewSecrets_secretChanges_filesChangeInPlace(t *testing.T) {
	secretly(t, nil, func(t *testing.T, n *fakeNode, m *Manager) {
		n.change(func() { n.vault.secret = map[string][]byte{"tls.crt": []byte("crt-2"), "ca.crt": []byte("ca-2")} })
		n.after(20 * time.Second)
		n.mustSee(t, "c001", "tls", files("tls.crt", "crt-2", "ca.crt", "ca-2"))
		n.after(47 * time.Minute)
		n.mustSee(t, "c001", "istio", files("token", "token-1-u1-istio-ca"))
		n.after(2 * time.Minute)
		n.mustSee(t, "c001", "istio", files("token", "token-2-u1-istio-ca"))
		if n.calls != 2 || n.vault.tokens != 2 {
			t.Errorf("%d calls and %d tokens", n.calls, n.vault.tokens)
		}
		// What the proxy does not see any more is gone.
		home := m.Homes.Of(podnet.Key{PodUID: "u1", Sandbox: "sandbox-u1"})
		if old, err := filepath.Glob(filepath.Join(home.Epoch(0).Secrets(), "*", "..v*")); err != nil || len(old) != 2 {
			t.Errorf("versions %v, error %v", old, err)
		}
	})
}

// An agent that starts asks for no token that is not due, and replaces no file that has not changed.
func TestRenewSecrets_newAgent_renewsToo(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		withSecrets(n)
		n.profile.Spec.Secrets[0].UpgradeOnRotation = true
		for range 4 {
			m, stop := agent()
			m.Follow(sandboxOf("u1"))
			n.after(10 * time.Minute)
			stop()
		}
		if got := n.running(); !slices.Equal(got, []string{"c001"}) || n.vault.tokens != 1 {
			t.Errorf("%v run, %d tokens", got, n.vault.tokens)
		}
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(10 * time.Minute)
		n.mustSee(t, "c001", "istio", files("token", "token-2-u1-istio-ca"))
		stop()
	})
}

// A proxy that reads its files only at its start is replaced by one that takes over from it, once.
func TestRenewSecrets_upgradeOnRotation_newProxyTakesOver(t *testing.T) {
	secretly(t, func(n *fakeNode) { n.profile.Spec.Secrets[0].UpgradeOnRotation = true }, func(t *testing.T, n *fakeNode, _ *Manager) {
		hash := n.mustSay(t, "u1", v1alpha1.Running, true).Hash
		n.change(func() {
			n.vault.secret = map[string][]byte{"tls.crt": []byte("crt-2")}
			n.behave = func(p *fakeProxy) { p.readyAfter = 12 * time.Second } // more than it may take
		})
		n.after(15 * time.Second)
		n.mustSee(t, "c002", "tls", files("tls.crt", "crt-2"))
		if got := n.said["u1"]; got.Hash != hash || got.Epoch != 0 || !got.Ready {
			t.Errorf("while the new one starts the ManagedProxy says %+v, the profile is %s", got, hash)
		}
		n.change(func() { n.behave = func(*fakeProxy) {} })
		n.after(10 * time.Minute)
		said := n.mustSay(t, "u1", v1alpha1.Running, true)
		if got := n.containers["c003"]; len(n.containers) != 1 || got == nil || got.from != "/run/sidecar/handover-0.sock" || said.Hash != hash {
			t.Errorf("containers %v; the ManagedProxy says %+v, the profile is %s", n.containers, said, hash)
		}
	})
}

// Wherever the agent is killed while secrets change, the next one ends with one proxy that has the new ones.
func TestRenewSecrets_agentKilled_rotationIsNotMissed(t *testing.T) {
	for kill := 1; kill < 8; kill++ {
		bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
			withSecrets(n)
			n.profile.Spec.Secrets[0].UpgradeOnRotation = true
			m, stop := agent()
			m.Follow(sandboxOf("u1"))
			n.change(func() { n.killAfter = kill })
			n.after(time.Second)
			n.change(func() { n.vault.secret = map[string][]byte{"tls.crt": []byte("crt-2")} })
			n.after(time.Minute)
			stop()
			n.change(func() { n.killAfter = 0 })
			m, stop = agent()
			m.Follow(sandboxOf("u1"))
			n.after(2 * time.Minute)
			n.mustSay(t, "u1", v1alpha1.Running, true)
			if got := n.running(); len(got) != 1 {
				t.Fatalf("killed after call %d: %v run", kill, got)
			}
			n.mustSee(t, n.running()[0], "tls", files("tls.crt", "crt-2"))
			stop()
		})
	}
}

// Without its secrets a new proxy does not start; one that runs keeps what it has. The ManagedProxy says why.
func TestRenewSecrets_unreadable_saysWhy(t *testing.T) {
	secretly(t, func(n *fakeNode) { n.vault.secret = nil }, func(t *testing.T, n *fakeNode, _ *Manager) {
		n.after(time.Minute)
		if said := n.mustSay(t, "u1", v1alpha1.Failed, false); said.Message != `secrets: "tls": Secret "mesh": it is not there` || len(n.containers) != 0 {
			t.Errorf("without the Secret: %+v", said)
		}
		n.change(func() { n.vault.secret = map[string][]byte{"tls.crt": []byte("crt-1")} })
		n.after(15 * time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
		n.change(func() { n.vault.secret, n.vault.fails = nil, errors.New("the API server is away") })
		n.after(time.Hour)
		said := n.mustSay(t, "u1", v1alpha1.Running, true)
		for _, want := range []string{`"tls" is not renewed: Secret "mesh": it is not there`, `"istio" is not renewed: token for the audience "istio-ca": the API server is away`} {
			if !strings.Contains(said.Message, want) {
				t.Errorf("%q is not in %q", want, said.Message)
			}
		}
		n.mustSee(t, "c001", "tls", files("tls.crt", "crt-1"))
		n.change(func() { n.vault.secret, n.vault.fails = map[string][]byte{"tls.crt": []byte("crt-2")}, nil })
		n.after(20 * time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Message != "" {
			t.Errorf("when they can be read again: %+v", said)
		}
		n.mustSee(t, "c001", "tls", files("tls.crt", "crt-2"))
	})
}

// A proxy of an older version of the profile gets new files of what its version asked for.
func TestRenewSecrets_upgradeFails_oldProxyIsRenewed(t *testing.T) {
	secretly(t, nil, func(t *testing.T, n *fakeNode, m *Manager) {
		n.change(func() {
			n.profile.Spec.Secrets = nil
			n.behave = func(p *fakeProxy) { p.readyAfter = -1 }
		})
		n.upgrade(m)
		n.after(time.Minute)
		n.change(func() { n.vault.secret = map[string][]byte{"tls.crt": []byte("crt-2")} })
		n.after(time.Minute)
		n.mustSee(t, "c001", "tls", files("tls.crt", "crt-2"))
	})
}

// Secrets go with the proxy, and with the pod, also if the kubelet was faster to remove the container.
func TestForget_proxyOrPodGone_secretsGo(t *testing.T) {
	secretly(t, nil, func(t *testing.T, n *fakeNode, m *Manager) {
		home := m.Homes.Of(podnet.Key{PodUID: "u1", Sandbox: "sandbox-u1"})
		n.change(func() { delete(n.containers, "c001") })
		n.after(15 * time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
		n.after(15 * time.Second)
		left, err := filepath.Glob(filepath.Join(home.Path, "secrets-0*"))
		if err != nil || len(left) != 0 {
			t.Errorf("of the proxy that is gone there are %v", left)
		}
		n.end("c002", 137) // with its sandbox
		n.change(func() { n.gone = true })
		n.after(45 * time.Second)
		if left, err := filepath.Glob(filepath.Join(m.Homes.Root, "*.*")); err != nil || len(left) != 0 {
			t.Errorf("of the pod that is gone there is %v, error %v", left, err)
		}
	})
}

func TestGrantSecrets_nodeSwaps_saysWhy(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		withSecrets(n)
		m, stop := agent()
		m.Homes.MayHaveSecrets = func() error { return errors.New("the node swaps") }
		m.Follow(sandboxOf("u1"))
		n.after(time.Minute)
		if said := n.mustSay(t, "u1", v1alpha1.Failed, false); said.Message != "the node swaps" || n.vault.tokens != 0 {
			t.Errorf("%+v, and %d tokens", said, n.vault.tokens)
		}
		stop()
	})
}
