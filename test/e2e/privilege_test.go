package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The numbers of linux/capability.h.
const (
	capNetAdmin = 12
	capNetRaw   = 13
	capSysAdmin = 21
)

// privileges are the capabilities that the backend needs, by name and as the kernel has them: iptables-legacy opens a raw socket.
func privileges() (names []corev1.Capability, bits uint64) {
	if backend() == iptables {
		return []corev1.Capability{"SYS_ADMIN", "NET_ADMIN", "NET_RAW"}, 1<<capNetAdmin | 1<<capSysAdmin | 1<<capNetRaw
	}
	return []corev1.Capability{"SYS_ADMIN", "NET_ADMIN"}, 1<<capNetAdmin | 1<<capSysAdmin
}

// Asked of the pod's specification, which reviewers read, and of the process, which is what counts.
//
//e2e:rounds nftables
func TestAgentHasNoMorePrivilegesThanItNeeds(t *testing.T) {
	t.Parallel()
	c := open(t)
	agent := c.agent(t)
	if agent.Spec.HostPID || agent.Spec.HostIPC || len(agent.Spec.Containers) != 1 || len(agent.Spec.InitContainers) != 0 {
		t.Errorf("the agent's pod: %+v", agent.Spec)
	}
	sc := agent.Spec.Containers[0].SecurityContext
	if *sc.Privileged || *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem {
		t.Errorf("the agent's container is privileged %v, may escalate %v, has a read-only root %v",
			*sc.Privileged, *sc.AllowPrivilegeEscalation, *sc.ReadOnlyRootFilesystem)
	}
	want, bits := privileges()
	if !slices.Equal(sc.Capabilities.Add, want) || !slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("the agent's container has capabilities %+v, want %v alone", sc.Capabilities, want)
	}
	pid := c.containerPID(t, agent, "agent")
	caps := fmt.Sprintf("%016x", bits)
	for field, want := range map[string]string{
		"CapEff": caps, "CapPrm": caps, "CapBnd": caps, "CapAmb": fmt.Sprintf("%016x", 0), "NoNewPrivs": "1", "Seccomp": "2",
	} {
		if got := processField(t, pid, field); got != want {
			t.Errorf("the agent's process has %s %s, want %s", field, got, want)
		}
	}
	wantReadOnly(t, agent, pid)
}

func processField(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("process %d has no %s", pid, name)
	return ""
}

// wantReadOnly wants the agent's root, and all that it sees of the node, mounted read-only into its process, but for the one directory in which it
// keeps what it needs to start while the API server is away.
func wantReadOnly(t *testing.T, agent *corev1.Pod, pid int) {
	t.Helper()
	paths := map[string]bool{"/": true}
	for _, m := range agent.Spec.Containers[0].VolumeMounts {
		own := slices.ContainsFunc(agent.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && (v.EmptyDir != nil || v.Name == "kept") })
		// As the process sees it: /var/run may be a link in an image, and is a directory in this one.
		paths[m.MountPath] = !own
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if paths[fields[4]] && !slices.Contains(strings.Split(fields[5], ","), "ro") {
			t.Errorf("mounted writable: %s", line)
		}
		delete(paths, fields[4])
	}
	for path := range paths {
		t.Errorf("nothing is mounted at %s", path)
	}
}
