package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// withNote has HAProxy's configuration take a line from the pod's annotation.
func withNote(spec map[string]any) {
	file := spec["files"].([]any)[0].(map[string]any)
	file["template"] = strings.Replace(file["template"].(string), "global\n", "global\n  description {{ index .Pod.Annotations \"note\" }}\n", 1)
}

// Who may annotate a pod writes data, and no line of the proxy's configuration.
func TestSidecarTakesAnnotationsAsData(t *testing.T) {
	t.Parallel()
	m := newManaged(t, withNote)
	for name, note := range map[string]string{
		"newline":   "x\n  stats socket /run/sidecar/open.sock mode 666 level admin",
		"directive": "%[env(PATH)]",
		"option":    "-f",
	} {
		pod := plainPod(name)
		pod.Annotations = map[string]string{"note": note}
		m.create(t, pod)
	}
	const harmless = `it's "q\' #{{ .Pod.UID }} $HOME ${HOME} \`
	quoted := plainPod("quoted")
	quoted.Annotations = map[string]string{"note": harmless}
	pod := m.startManaged(t, quoted)
	m.wantProxied(t, pod)
	home := fmt.Sprintf("%s.%s", pod.UID, m.sandboxOf(t, pod).ID)
	text, err := os.ReadFile(filepath.Join(m.node.NodeRoot, sidecarRoot, home, "files-0/haproxy.cfg"))
	must(t, err)
	if want := `  description 'it'\''s "q\'\'' #{{ .Pod.UID }} $HOME ${HOME} \'` + "\n"; !strings.Contains(string(text), want) {
		t.Errorf("the file has no line %s:\n%.300s", want, text)
	}
	for _, name := range []string{"newline", "directive", "option"} {
		m.awaitSidecar(t, name, says(false, "haproxy.cfg", "value"))
		if now := m.await(t, name, isRunning); isReady(now) {
			t.Errorf("%s is ready", name)
		}
	}
}

// A root user in the application, in a pod whose containers see each other's processes, finds nothing of the proxy.
func TestSidecarIsOutOfItsApplicationsReach(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := plainPod("sharing")
	yes := true
	pod.Spec.ShareProcessNamespace = &yes
	pod.Spec.Containers[0] = toolsContainer()
	pod = m.startManaged(t, pod)
	out := m.shell(t, pod, `cat /proc/[0-9]*/cmdline | tr '\0' ' '; ls -a /run/sidecar /etc/sidecar /dev/shm 2>&1; touch /dev/shm/app`)
	if !strings.Contains(out, "testapp") || strings.Contains(out, "haproxy") || strings.Contains(out, "handover") {
		t.Errorf("the application sees\n%s", out)
	}
	home := filepath.Join(m.node.NodeRoot, sidecarRoot, fmt.Sprintf("%s.%s", pod.UID, m.sandboxOf(t, pod).ID))
	files, err := os.ReadDir(filepath.Join(home, "shm"))
	must(t, err)
	if len(files) > 0 {
		t.Errorf("the application has written %v into the proxy's /dev/shm", files)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.containerPID(t, pod, managedProxy)))
	must(t, err)
	for _, want := range []string{"CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Uid:\t1337\t1337"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the proxy's process has no %q:\n%s", want, status)
		}
	}
}

// shell runs a script in the pod's application.
func (s *space) shell(t *testing.T, pod *corev1.Pod, script string) string {
	t.Helper()
	out, err := s.run(t.Context(), command{namespace: s.name, pod: pod.Name, container: "app", argv: []string{"sh", "-c", script}})
	must(t, err)
	return out
}
