package e2e

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	pusher "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// registrySecret has the credentials of the registry. It is in the chart's value proxies.secrets.
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
	c.pullPlainly(t, host)
	return host
}

// pullPlainly has the runtime ask a registry by plain HTTP. containerd reads its file at each pull, CRI-O when the directory changes.
func (c *cluster) pullPlainly(t *testing.T, host string) {
	t.Helper()
	file, text := "etc/containerd/certs.d/"+host+"/hosts.toml", `server = "http://`+host+`"`+"\n"
	if c.node.Runtime == "crio" {
		file, text = "etc/containers/registries.conf.d/"+host+".conf", "[[registry]]\nlocation = "+strconv.Quote(host)+"\ninsecure = true\n"
	}
	file = filepath.Join(c.node.NodeRoot, file)
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, []byte(text), 0o600))
	t.Cleanup(func() { must(t, os.Remove(file)) })
}

// push puts one of the cluster's images into the registry, under a name that the node does not have.
func (c *cluster) push(t *testing.T, image, remote string) {
	t.Helper()
	from, err := name.NewTag(image)
	must(t, err)
	to, err := name.NewTag(remote, name.Insecure)
	must(t, err)
	found, err := tarball.ImageFromPath(filepath.Join(filepath.Dir(c.node.Tools), path.Base(from.RepositoryStr())+".tar"), &from)
	must(t, err)
	must(t, pusher.Write(to, found, pusher.WithContext(t.Context()), pusher.WithAuth(&authn.Basic{Username: registryUser, Password: registryPassword})))
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
	m.awaitProxyFailed(t, pod, image, registrySecret, "not there")
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
