package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// excludeOutboundPorts is the annotation that the measurements edit.
const excludeOutboundPorts = "traffic.sidecar.istio.io/excludeOutboundPorts"

// program is a program that is started for each pod, from the node's network namespace or in the pod's.
type program struct {
	meters  meters
	command func(p *meshPod) *exec.Cmd
	inside  bool

	mu      sync.Mutex
	used    counts
	running map[int]bool // process groups
}

// istioCNI is istio-cni as a runtime calls it, with a configuration as its DaemonSet writes it. It asks the API server for the pod.
func istioCNI(m meters, programs, kubeconfigs string, nftables bool) *program {
	return &program{meters: m, command: func(p *meshPod) *exec.Cmd {
		return cniAdd(filepath.Join(programs, "istio-cni"), p, fmt.Sprintf(`"plugin_log_level": "info", "cni_agent_run_dir": %q, "native_nftables": %t`, kubeconfigs, nftables))
	}}
}

// cniAdd is CNI's ADD for a pod by a chained plugin with such a configuration.
func cniAdd(plugin string, p *meshPod, conf string) *exec.Cmd {
	cmd := exec.Command(plugin)
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+p.id, "CNI_NETNS="+p.netns, "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", p.pod.Namespace, p.pod.Name, p.pod.UID))
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench", "type": %q, "prevResult": {"cniVersion": "1.0.0"}, %s}`, filepath.Base(plugin), conf))
	return cmd
}

// istioInit is what the container istio-init runs: with the arguments of Istio's injection template, and more. The container costs nothing here.
func istioInit(m meters, programs string, more ...string) *program {
	return &program{meters: m, inside: true, command: func(p *meshPod) *exec.Cmd {
		args := append([]string{
			"istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020",
			"--log_output_level=default:info",
		}, more...)
		if ports := p.pod.Annotations[excludeOutboundPorts]; ports != "" {
			args = append(args, "-o", ports)
		}
		cmd := exec.Command(filepath.Join(programs, "pilot-agent"), args...)
		// Each container has a lock file of its own.
		cmd.Env = append(os.Environ(), "ISTIO_DUAL_STACK=true", "XTABLES_LOCKFILE="+p.netns)
		return cmd
	}}
}

// add runs the program to its end, and returns how long that took.
func (g *program) add(_ context.Context, p *meshPod) (took time.Duration, err error) {
	var out bytes.Buffer
	cmd := g.command(p)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	from := g.meters.host
	if g.inside {
		from = p.mounted
	}
	began := time.Now()
	m, err := g.meters.counting(from, func() error { return g.start(cmd) })
	if err != nil {
		return 0, err
	}
	defer m.close()
	err = cmd.Wait()
	took = time.Since(began)
	used, errUsed := m.read()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.running, cmd.Process.Pid)
	g.used = g.used.plus(used)
	if err != nil {
		text := out.String()
		return 0, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, text[max(0, len(text)-600):])
	}
	return took, errUsed
}

func (g *program) start(cmd *exec.Cmd) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	if g.running == nil {
		g.running = map[int]bool{}
	}
	g.running[cmd.Process.Pid] = true
	return nil
}

// reported has nothing to wait for: the program has ended.
func (g *program) reported(context.Context, int) error { return nil }

// change runs the program once more, in a pod that has rules.
func (g *program) change(ctx context.Context, p *meshPod) error {
	_, err := g.add(ctx, p)
	return err
}

// kill ends what runs, with all children.
func (g *program) kill() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for group := range g.running {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
	return nil
}

// recover runs the program once more.
func (g *program) recover(ctx context.Context, p *meshPod) error {
	if p == nil {
		return nil
	}
	return g.change(ctx, p)
}

func (g *program) counts() (counts, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.used, nil
}
