package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// oneNetwork is the network of the node, to which the agent chains its plugin.
const oneNetwork = `{"cniVersion": "1.0.0", "name": "bench", "plugins": [{"type": "bridge"}]}`

// agentPeer is the real agent on a node of its own, with all its hooks.
type agentPeer struct {
	meters          meters
	server          *server
	runtime         *containerRuntime
	binary, backend string

	plugin *program
	agent  *agent
	meter  meter
	past   counts // of agents that were killed
}

func newAgentPeer(ctx context.Context, m meters, s *server, r *containerRuntime, binary, backend string) (*agentPeer, error) {
	a := &agentPeer{meters: m, server: s, runtime: r, binary: binary, backend: backend}
	a.plugin = &program{meters: m, command: func(p *meshPod) *exec.Cmd {
		return cniAdd(a.path(), p, fmt.Sprintf(`"socket": %q, "timeoutSeconds": 10`, a.socket()))
	}}
	for _, sub := range []string{"bin", "net.d"} {
		if err := os.MkdirAll(filepath.Join(r.dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "net.d", "10-bench.conflist"), []byte(oneNetwork), 0o600); err != nil {
		return nil, err
	}
	return a, a.start(ctx)
}

func (a *agentPeer) node() string   { return "node-" + a.backend }
func (a *agentPeer) socket() string { return filepath.Join(a.runtime.dir, "cni.sock") }

// path is the CNI plugin's, which was built beside the agent.
func (a *agentPeer) path() string {
	return filepath.Join(filepath.Dir(a.binary), "istio-pod-network-cni")
}

func (a *agentPeer) start(ctx context.Context) (err error) {
	a.meter, err = a.meters.counting(a.meters.host, func() (err error) {
		a.agent, err = startAgent(ctx, a.server, a.runtime, a.binary, "--node-name="+a.node(), "--backend="+a.backend, "--verify-interval=0", "--nri=required",
			"--cni=install", "--cni-plugin-source="+a.path(), "--cni-bin-dir="+filepath.Join(a.runtime.dir, "bin"),
			"--cni-conf-dir="+filepath.Join(a.runtime.dir, "net.d"), "--cni-socket="+a.socket())
		return err
	})
	return err
}

func (a *agentPeer) stop() error {
	defer a.meter.close()
	return a.agent.stop(syscall.SIGTERM)
}

// byNRI has the runtime ask the agent before the pod's sandbox goes on.
func (a *agentPeer) byNRI(ctx context.Context, p *meshPod) (time.Duration, error) {
	return a.runtime.announce(ctx, p.sandbox)
}

// byWatch has the agent learn of a pod that runs from the API server, and returns how long its rules took from the kubelet's report.
func (a *agentPeer) byWatch(ctx context.Context, p *meshPod) (time.Duration, error) {
	began := time.Now()
	if err := a.server.setStatus(ctx, running(p.pod, 0)); err != nil {
		return 0, err
	}
	for p.streams()[0].ask(ctx) != byProxy {
		if err := pause(ctx, time.Millisecond); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// reported waits until the agent has reported all pods.
func (a *agentPeer) reported(ctx context.Context, pods int) error {
	return eventually(ctx, time.Minute, "all pods have a report", func(ctx context.Context) error {
		list, err := a.server.admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + a.node(), ResourceVersion: "0"})
		if err != nil {
			return err
		}
		if n := len(list.Items) - unreported(list.Items); n != pods {
			return fmt.Errorf("%d of %d have one", n, pods)
		}
		return nil
	})
}

// change waits until the agent has followed the edit of the pod's annotations.
func (a *agentPeer) change(ctx context.Context, p *meshPod) error {
	for p.edited(ctx) != p.wanted() {
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// kill ends the agent, with all children.
func (a *agentPeer) kill() error {
	a.agent.kill()
	used, err := a.meter.read()
	a.past = a.past.plus(used)
	a.meter.close()
	return err
}

// recover starts the agent again, and waits until it has seen to a pod.
func (a *agentPeer) recover(ctx context.Context, p *meshPod) error {
	if err := a.start(ctx); err != nil || p == nil {
		return err
	}
	return eventually(ctx, 10*time.Second, "the pod is captured again", p.captured)
}

func (a *agentPeer) counts() (counts, error) {
	now, err := a.meter.read()
	plugin, _ := a.plugin.counts()
	return a.past.plus(now).plus(plugin), err
}
