package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// confinement says as what the kernel knows the processes of pods and of the agent, where it enforces a policy.
type confinement struct{ pod, agent *regexp.Regexp }

func confinementOf(t *testing.T) confinement {
	t.Helper()
	switch security := os.Getenv("E2E_SECURITY"); security {
	case "selinux": // whose level is its pod's alone
		return confinement{regexp.MustCompile(`^system_u:system_r:container_t:s0:c\d+,c\d+$`), regexp.MustCompile(`:spc_t:s0$`)}
	case "apparmor":
		profile := regexp.MustCompile(`^cri-containerd\.apparmor\.d \(enforce\)$`)
		return confinement{profile, profile}
	default:
		t.Skipf("E2E_SECURITY is %q, neither selinux nor apparmor", security)
		return confinement{}
	}
}

// Where SELinux or AppArmor enforces, an application and its proxy are confined as one pod, and the proxy may read what it is shown while it runs.
//
//e2e:rounds nri
func TestPodsAndProxiesAreConfined(t *testing.T) {
	t.Parallel()
	want := confinementOf(t)
	m := newManaged(t, withSecrets(secretSource("late", lateSecret, "key")))
	m.putSecret(t, lateSecret, map[string][]byte{"key": []byte("before")})
	pod := m.startManaged(t, plainPod("confined"))
	app, proxy, agent := m.labelOf(t, pod, pod.Spec.Containers[0].Name), m.labelOf(t, pod, managedProxy), m.labelOf(t, m.agent(t), "agent")
	t.Logf("the application is %q, its proxy %q, the agent %q", app, proxy, agent)
	if !want.pod.MatchString(app) || proxy != app || !want.agent.MatchString(agent) {
		t.Errorf("want the first two to be the same, %s, and the agent %s", want.pod, want.agent)
	}
	m.putSecret(t, lateSecret, map[string][]byte{"key": []byte("after")})
	dir := m.secretsOf(t, pod, 0)
	eventually(t, "the new file of the proxy", func(context.Context) error {
		text, err := os.ReadFile(filepath.Join(dir, "late/key"))
		if err == nil && string(text) != "after" {
			err = fmt.Errorf("it is still %q", text)
		}
		return err
	})
	wantOneLabel(t, dir)
}

// labelOf is what the kernel knows a container's first process as.
func (c *cluster) labelOf(t *testing.T, pod *corev1.Pod, container string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", c.containerPID(t, pod, container)))
	must(t, err)
	return string(bytes.TrimRight(text, "\x00\n"))
}

// wantOneLabel wants all below a directory to have its SELinux label, if it has one.
func wantOneLabel(t *testing.T, dir string) {
	t.Helper()
	label := func(path string) string {
		text := make([]byte, 4096)
		n, err := unix.Lgetxattr(path, "security.selinux", text)
		if err != nil {
			return ""
		}
		return string(text[:n])
	}
	want := label(dir)
	t.Logf("the proxy's secrets have the label %q", want)
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if got := label(path); err == nil && got != want {
			t.Errorf("%s has the label %q, which the proxy may not read", path, got)
		}
		return err
	}))
}
