package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// registrySecret has the credentials of the registry. It is in the chart's value sidecars.secrets.
const registrySecret = "e2e-registry"

const (
	registryUser     = "puller"
	registryPassword = "not-to-be-shown"
)

// serveRegistry starts a registry that wants a password, and has the node's runtime ask it by plain HTTP. It returns the registry's host.
func serveRegistry(t *testing.T, c *cluster) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(families()[0].client.String(), "0"))
	must(t, err)
	images := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != registryUser || password != registryPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	})}
	go server.Serve(l) //nolint:errcheck // ends with the test
	t.Cleanup(func() { _ = server.Close() })

	host := l.Addr().String()
	dir := filepath.Join(c.node.NodeRoot, "etc/containerd/certs.d", host) // the runtime reads it at each pull
	must(t, os.MkdirAll(dir, 0o755))
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(`server = "http://`+host+`"`+"\n"), 0o600))
	return host
}

// push puts an image of the node into the registry, under a name that the node does not have.
func (c *cluster) push(t *testing.T, image, remote string) {
	t.Helper()
	c.ctr(t, "push", "--plain-http", "--user", registryUser+":"+registryPassword, remote, image)
	t.Cleanup(func() { c.ctr(t, "rm", remote) }) // once it was pulled
}

// ctr runs the runtime's tool for images on the node.
func (c *cluster) ctr(t *testing.T, args ...string) {
	t.Helper()
	argv := append([]string{"node", "--", "ctr", "--namespace", "k8s.io", "images"}, args...)
	if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "kc", argv...).CombinedOutput(); err != nil {
		t.Fatalf("ctr images %s: %v\n%s", args[0], err, out)
	}
}

// dockerConfig is what a Secret of type kubernetes.io/dockerconfigjson holds.
func dockerConfig(t *testing.T, host, password string) map[string][]byte {
	t.Helper()
	text, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]any{"username": registryUser, "password": password}}})
	must(t, err)
	return map[string][]byte{".dockerconfigjson": text}
}

// An image of a registry that asks for a password is pulled as soon as the agent has it, and not before. Until then the old proxy serves.
//
//e2e:rounds nri
func TestSidecarImageOfARegistryWithAPassword(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	host := serveRegistry(t, m.cluster)
	image := host + "/mesh/haproxy:1"
	m.push(t, sidecarsImage, image)
	pod := m.startManaged(t, plainPod("pulling"))
	agent := m.agent(t)

	m.patchProfile(t, map[string]any{"image": image, "imagePullSecrets": []any{map[string]any{"name": registrySecret}}})
	m.awaitSidecar(t, "pulling", says(true, image, "cannot be pulled", registrySecret, "not there"))
	m.awaitWarningOf(t, pod, proxyFailed, image, registrySecret, "not there")
	m.wantProxied(t, pod)

	m.putSecret(t, registrySecret, dockerConfig(t, host, "wrong-one"))
	m.awaitSidecar(t, "pulling", func(status map[string]any) error {
		if text, _ := status["message"].(string); strings.Contains(text, "not there") || strings.Contains(text, "wrong-one") {
			return errors.New(text)
		}
		return says(true, image, "cannot be pulled")(status)
	})
	m.putSecret(t, registrySecret, dockerConfig(t, host, registryPassword))
	m.awaitSidecar(t, "pulling", isServing(1))
	m.wantProxied(t, pod)
	if status, err := m.sidecar(t.Context(), "pulling"); err != nil || status["image"] != image {
		t.Errorf("the ManagedProxy says %v, error %v", status, err)
	}
	if now := m.agent(t); now.UID != agent.UID || now.Status.ContainerStatuses[0].RestartCount != agent.Status.ContainerStatuses[0].RestartCount {
		t.Error("the agent has been restarted")
	}
	if log := m.agentLog(t); strings.Contains(log, registryPassword) || strings.Contains(log, "wrong-one") {
		t.Error("the agent's log has the password")
	}
}
