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
