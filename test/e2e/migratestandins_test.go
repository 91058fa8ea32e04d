package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// istioDir is where the node has what stands for Istio's CNI plugin.
const istioDir = "/opt/istio-stand-in"

// istioRules are Istio's own rules, by file name, and the script that loads them.
func istioRules(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, file := range []string{"testdata/migrate/program.sh", "redirect.nft", "redirect.rules", "tproxy.nft", "tproxy.rules"} {
		path := file
		if !strings.Contains(file, "/") {
			path = "../../test/conformance/testdata/istio/" + file
		}
		text, err := os.ReadFile(path)
		must(t, err)
		files[filepath.Base(file)] = string(text)
	}
	return files
}

// keepIstioRules makes a ConfigMap of the rules, for init containers.
func (s *space) keepIstioRules(t *testing.T) {
	t.Helper()
	s.keepConfig(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "istio-rules"}, Data: istioRules(t)})
}

// installIstioCNI has the node's CNI chain program the pods of this namespace as Istio's plugin does, from a Helm release of Istio's name.
func (s *space) installIstioCNI(t *testing.T) {
	t.Helper()
	s.makeIstioSystem(t)
	dir := filepath.Join(s.node.NodeRoot, istioDir)
	must(t, os.MkdirAll(dir, 0o750))
	files := istioRules(t)
	files["namespace"] = s.name
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	text, err := os.ReadFile("testdata/migrate/istio-cni")
	must(t, err)
	plugin := filepath.Join(s.node.NodeRoot, "opt/cni/bin/istio-cni")
	must(t, os.WriteFile(plugin, []byte(strings.ReplaceAll(string(text), "DIRECTORY", istioDir)), 0o700))
	chart := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(chart, "templates"), 0o750))
	must(t, os.WriteFile(filepath.Join(chart, "Chart.yaml"), []byte("apiVersion: v2\nname: cni\nversion: 0.0.1\n"), 0o600))
	if text, err = os.ReadFile("testdata/migrate/istio-cni.yaml"); err == nil {
		err = os.WriteFile(filepath.Join(chart, "templates/daemonset.yaml"), text, 0o600)
	}
	must(t, err)
	t.Cleanup(func() {
		helm(t, "uninstall", "istio-cni", "-n", "istio-system", "--ignore-not-found", "--wait")
		s.awaitChain(t, "istio-cni", false)
		must(t, errors.Join(os.Remove(plugin), os.RemoveAll(dir)))
	})
	helm(t, "install", "istio-cni", chart, "-n", "istio-system", "--wait")
	s.awaitChain(t, "istio-cni", true)
}

// makeIstioSystem makes Istio's namespace for the test.
func (c *cluster) makeIstioSystem(t *testing.T) {
	t.Helper()
	namespaces := c.api.CoreV1().Namespaces()
	const name = "istio-system"
	eventually(t, "the namespace "+name, func(ctx context.Context) error {
		_, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err // the one of an earlier test may be going
	})
	t.Cleanup(func() {
		if err := namespaces.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}

// awaitChain waits until the runtime's network has a plugin, or has it no more.
func (c *cluster) awaitChain(t *testing.T, plugin string, want bool) {
	t.Helper()
	eventually(t, "the runtime's network", func(ctx context.Context) error {
		status, err := c.runtime.Status(ctx, &criv1.StatusRequest{Verbose: true})
		if err == nil && strings.Contains(status.Info["cniconfig"], plugin) != want {
			err = errors.New("it is " + status.Info["cniconfig"])
		}
		return err
	})
}
