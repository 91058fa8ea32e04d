package e2e

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A node of Docker Engine, with dockerd itself: what the kubelet does there by way of cri-dockerd this test does.
//
// Not parallel: it compares the node's own rules.
//
//e2e:rounds nftables
func TestDockerEngine(t *testing.T) {
	d := newDockerSpace(t)
	t.Run("pod is programmed, and edits are followed over a restart of dockerd", d.testEdits)
	t.Run("rules go into the newer of two sandboxes, and into none that another pod's name is on", d.testSandboxes)
	t.Run("sandbox that only a process leads to", d.testProcess)
	t.Run("host's network is left alone", d.testHostNetwork)
}

// serve has one program be the application and its proxy.
func (d *dockerSpace) serve(t *testing.T, of claim, in container) {
	t.Helper()
	d.engine.runApp(t, of, in, "serve", "-http=8080,15001,15006")
}

func (d *dockerSpace) testEdits(t *testing.T) {
	pod := d.bind(t, newPod("web", asked(), appContainer()))
	sandbox := d.engine.runSandbox(t, claimOf(pod, 0), "none")
	nodeIP, podIP := d.connect(t, sandbox)
	d.serve(t, claimOf(pod, 0), sandbox)
	pod = d.await(t, pod.Name, inSandbox(sandbox))
	want := func(netns, target, port string) {
		t.Helper()
		eventually(t, "an answer of "+target, func(ctx context.Context) error {
			if got := reaches(ctx, t, netns, target); got != port {
				return errors.New("it comes from port " + got + ", want " + port)
			}
			return nil
		})
	}
	want("", podIP+":8080", "15006")
	want(sandbox.netns(), nodeIP+":3306", "15001")

	first := readDetails(t, pod)
	if first.Backend != backend() || !isLate(first.Hook) {
		t.Errorf("details are %+v", first)
	}
	d.touch(t, pod, "3306")
	pod = d.await(t, pod.Name, hasOtherHash(first.SpecHash))
	want(sandbox.netns(), nodeIP+":3306", "") // nobody listens there
	want(sandbox.netns(), nodeIP+":3307", "15001")

	d.engine.stop(t)
	d.engine.start(t)
	second := readDetails(t, pod).SpecHash
	d.touch(t, pod, "3307")
	d.await(t, pod.Name, hasOtherHash(second))
	want(sandbox.netns(), nodeIP+":3306", "15001")
	want(sandbox.netns(), nodeIP+":3307", "")
}

func (d *dockerSpace) testSandboxes(t *testing.T) {
	pod := d.bind(t, newPod("again", asked(), appContainer()))
	later := d.engine.runSandbox(t, claimOf(pod, 3), "none")
	d.await(t, pod.Name, inSandbox(later))
	earlier := d.engine.runSandbox(t, claimOf(pod, 2), "none")
	forged := claimOf(pod, 9)
	forged.name = "somebody"
	other := d.engine.runSandbox(t, forged, "none")
	d.touch(t, pod, "3306")
	before := readDetails(t, d.await(t, pod.Name, inSandbox(later))).SpecHash
	d.touch(t, pod, "3307")
	d.await(t, pod.Name, hasOtherHash(before))
	d.await(t, pod.Name, inSandbox(later))
	for name, c := range map[string]container{"an earlier": earlier, "a forged": other} {
		if rules := d.rulesIn(t.Context(), t, c.netns()); rules != "" {
			t.Errorf("%s sandbox holds rules:\n%s", name, rules)
		}
	}

	newest := d.engine.runSandbox(t, claimOf(pod, 4), "none")
	d.engine.remove(t.Context(), t, later.ID)
	d.touch(t, pod, "3308")
	d.await(t, pod.Name, inSandbox(newest))
	if d.rulesIn(t.Context(), t, newest.netns()) == "" {
		t.Error("the newest sandbox holds no rules")
	}
}

// A container that has joined another one's network has no path of its own in the Engine's answer.
func (d *dockerSpace) testProcess(t *testing.T) {
	pod := d.bind(t, newPod("joined", asked(), appContainer()))
	owner := d.engine.runSandbox(t, claim{name: "owner", namespace: "nowhere", uid: "none"}, "none")
	sandbox := d.engine.runSandbox(t, claimOf(pod, 0), "container:"+owner.ID)
	if key := sandbox.NetworkSettings.SandboxKey; key != "" {
		t.Fatalf("the Engine tells path %q: the test would prove nothing", key)
	}
	d.await(t, pod.Name, inSandbox(sandbox))
	if d.rulesIn(t.Context(), t, sandbox.netns()) == "" {
		t.Error("the sandbox holds no rules")
	}
	// The verifier keeps them, though it has to ask the Engine each time.
	if out, err := onNode(t.Context(), "", agentProgram(t), "rules", "remove", "--backend", backend(), "--netns", sandbox.netns()); err != nil {
		t.Fatalf("take the rules away: %v: %s", err, out)
	}
	eventually(t, "the verifier's repair", func(ctx context.Context) error {
		if d.rulesIn(ctx, t, sandbox.netns()) == "" {
			return errors.New("there are no rules")
		}
		return nil
	})
}

func (d *dockerSpace) testHostNetwork(t *testing.T) {
	before, skipped := hostState(t), d.ensured(t.Context(), t, "skipped")
	host := newPod("host", asked(), appContainer())
	host.Spec.HostNetwork = true
	host = d.bind(t, host)
	d.engine.runSandbox(t, claimOf(host, 0), "host")

	// The Engine's word counts where the pod's own says otherwise.
	lying := d.bind(t, newPod("lying", asked(), appContainer()))
	d.engine.runSandbox(t, claimOf(lying, 0), "host")
	d.await(t, lying.Name, hasStatus(statusFailed))

	eventually(t, "the agent to skip the pod on the host's network", func(ctx context.Context) error {
		if d.ensured(ctx, t, "skipped") == skipped {
			return errors.New("it has skipped none")
		}
		return nil
	})
	wantToldNotRequired(t, d.await(t, host.Name, func(*corev1.Pod) error { return nil }))
	if after := hostState(t); after != before {
		t.Errorf("the node's own namespace has changed\nfrom:\n%s\nto:\n%s", before, after)
	}
}

// rulesIn is what the agent has put into a namespace, "" for nothing.
func (d *dockerSpace) rulesIn(ctx context.Context, t *testing.T, netns string) string {
	t.Helper()
	out, err := onNode(ctx, "", agentProgram(t), "rules", "show", "--netns", netns)
	var ended *exec.ExitError
	if errors.As(err, &ended) && strings.Contains(string(ended.Stderr), "holds no rules of ours") {
		return ""
	}
	must(t, err)
	return out
}
