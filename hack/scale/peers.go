package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/internal/intent"
)

// peer is who programs pods: the agent, or a program of Istio's.
type peer interface {
	// reported waits until it has reported so many pods, which are all that its node has.
	reported(ctx context.Context, pods int) error
	// change has it follow an edit of a pod's annotations.
	change(ctx context.Context, p *meshPod) error
	// kill ends it at once, with all children, and recover has it work again, also on a pod, unless that is nil.
	kill() error
	recover(ctx context.Context, p *meshPod) error
	// counts returns what it has used.
	counts() (counts, error)
}

// way is how a new pod gets its rules.
type way struct {
	peer
	name, node string
	runtime    *containerRuntime
	// add gives a new pod its rules, and returns how long the pod's start waits.
	add func(ctx context.Context, p *meshPod) (time.Duration, error)
	// startTakes and changeTakes are how long a new pod and a change take.
	startTakes, changeTakes time.Duration
	// edits is whether rules are changed in a way of its own.
	edits bool
	// sameSandbox is whether a failure is tried again in the same sandbox, as an init container is.
	sameSandbox bool
}

// peersBench is a cluster with a node for each agent, and one for Istio's programs.
type peersBench struct {
	*nodeBench
	dir     string
	ways    []*way
	stopped []func() error

	mu   sync.Mutex
	pods int
}

// peers compares what new pods cost this agent, by both backends and each hook, with what they cost Istio's CNI plugin, by both of its backends, and
// what Istio's init container runs: in turn, in network namespaces with connections, and beside the same API server. Without Istio's programs it
// measures the agent alone.
func (b bench) peers(ctx context.Context, dir string) ([]row, error) {
	return b.besidePeers(ctx, dir, (*peersBench).starts, (*peersBench).crowds)
}

// faults compares what becomes of pods' connections when their rules are changed, and when who applies them is killed.
func (b bench) faults(ctx context.Context, dir string) ([]row, error) {
	return b.besidePeers(ctx, dir, (*peersBench).edits, (*peersBench).kills)
}

func (b bench) besidePeers(ctx context.Context, dir string, parts ...func(*peersBench, context.Context) ([]row, error)) (rows []row, err error) {
	n, err := b.newNode(ctx, dir)
	if err != nil {
		return nil, err
	}
	p := &peersBench{nodeBench: n, dir: dir, stopped: []func() error{n.server.stop, n.runtime.stop}}
	defer func() {
		for i := range p.stopped {
			err = errors.Join(err, p.stopped[len(p.stopped)-1-i]())
		}
	}()
	if err := errors.Join(makeNamespaces(ctx, n.server.admin, 1), p.begin(ctx)); err != nil {
		return nil, err
	}
	for _, part := range parts {
		more, err := part(p, ctx)
		rows = append(rows, more...)
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// begin starts the agents and lists all ways.
func (p *peersBench) begin(ctx context.Context) error {
	m, err := newMeters(filepath.Join(p.dir, "tracing"))
	if err != nil {
		return err
	}
	p.stopped = append(p.stopped, m.host.Close)
	if err := p.addIstio(m); err != nil {
		return err
	}
	for _, backend := range []string{"iptables", "nftables"} {
		dir := filepath.Join(p.dir, backend)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		r, err := newRuntime(dir)
		if err != nil {
			return err
		}
		p.stopped = append(p.stopped, r.stop)
		a, err := newAgentPeer(ctx, m, p.server, r, p.agent, backend)
		if err != nil {
			return err
		}
		p.stopped = append(p.stopped, a.stop)
		of := func(hook string) way {
			return way{peer: a, name: "this agent, " + backend + ", " + hook, node: a.node(), runtime: r}
		}
		nri, cni, watch := of("NRI"), of("CNI chain"), of("watch")
		nri.add, cni.add, watch.add, nri.edits = a.byNRI, a.plugin.add, a.byWatch, true
		p.ways = append(p.ways, &nri, &cni, &watch)
	}
	return nil
}

// addIstio adds the ways of Istio's programs.
func (p *peersBench) addIstio(m meters) error {
	if p.istio == "" {
		fmt.Fprintln(os.Stderr, "Istio's programs are left out: no -istio (hack/bench.sh peers builds them)")
		return nil
	}
	kubeconfig, err := p.server.writeKubeconfig(p.dir)
	if err == nil {
		err = os.Rename(kubeconfig, filepath.Join(p.dir, "istio-cni-kubeconfig"))
	}
	if err != nil {
		return err
	}
	add := func(name string, g *program) {
		p.ways = append(p.ways, &way{peer: g, name: name, node: "node-istio", runtime: p.runtime, add: g.add, edits: true, sameSandbox: g.inside})
	}
	add("istio-cni, iptables", istioCNI(m, p.istio, p.dir, false))
	add("istio-cni, nftables", istioCNI(m, p.istio, p.dir, true))
	add("istio-iptables (init container)", istioInit(m, p.istio))
	add("istio-iptables --reconcile", istioInit(m, p.istio, "--reconcile"))
	return nil
}

// open makes a pod of the way's node with a sandbox, which nobody has programmed.
func (p *peersBench) open(ctx context.Context, w *way) (*meshPod, error) {
	p.mu.Lock()
	p.pods++
	name := fmt.Sprintf("pod-%05d", p.pods)
	p.mu.Unlock()
	pod := newPod(name, namespaceName(0), w.node)
	pod.Annotations["sidecar.istio.io/status"] = "{}" // the injector's
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == intent.ProxyContainer {
			c.Env = append(c.Env, corev1.EnvVar{Name: "ISTIO_DUAL_STACK", Value: "true"})
		}
	}
	pod, err := p.server.admin.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	s, err := w.runtime.add(pod)
	if err != nil {
		return nil, err
	}
	return newMeshPod(ctx, s)
}

// settle has the kubelet report that the pods run, and waits until the way is done with them. They are all that its node has.
func (p *peersBench) settle(ctx context.Context, w *way, pods ...*meshPod) error {
	err := each(ctx, len(pods), func(ctx context.Context, i int) error { return p.server.setStatus(ctx, running(pods[i].pod, 0)) })
	return errors.Join(err, w.reported(ctx, len(pods)))
}

// end ends a pod.
func (p *peersBench) end(ctx context.Context, w *way, m *meshPod) error {
	return errors.Join(m.close(), w.runtime.end(ctx, m.pod),
		p.server.admin.CoreV1().Pods(m.pod.Namespace).Delete(ctx, m.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
}

// edit changes the pod's annotation: a port is excluded, or not any more.
func (p *peersBench) edit(ctx context.Context, m *meshPod) (err error) {
	ports := fmt.Sprint(editedPort)
	if m.wanted() == directly {
		ports = ""
	}
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, excludeOutboundPorts, ports)
	pod, err := p.server.admin.CoreV1().Pods(m.pod.Namespace).Patch(ctx, m.pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		m.pod = pod
	}
	return err
}

// times is how often something is measured.
func (b bench) times() int {
	if b.small {
		return 1
	}
	return rounds
}
