// Package admissiontest proves the chart's admission policies on a real API server, with pods of every shape.
package admissiontest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// server is a control plane of two processes on loopback, without nodes and controllers.
type server struct {
	config  *rest.Config
	admin   kubernetes.Interface
	dynamic dynamic.Interface
}

// programs is the directory of etcd and kube-apiserver: the one that is named, or the newest that was built for the cluster.
func programs(t *testing.T) string {
	t.Helper()
	pattern := os.Getenv("KUBEBUILDER_ASSETS")
	if pattern == "" {
		cache, err := os.UserCacheDir()
		must(t, err)
		pattern = filepath.Join(cache, "istio-pod-network-controller/cluster/*/bin")
	}
	dirs, err := filepath.Glob(pattern)
	must(t, err)
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return built(dir).IsZero() })
	if len(dirs) == 0 {
		t.Fatal("there is no API server to test on: build one with `hack/cluster/kc build`, which `make demo` does, too," +
			" or name a directory with etcd and kube-apiserver of Kubernetes 1.36 or newer in KUBEBUILDER_ASSETS")
	}
	return slices.MaxFunc(dirs, func(a, b string) int { return built(a).Compare(built(b)) })
}

// built is when a directory got its API server, or never.
func built(dir string) time.Time {
	_, err := os.Stat(filepath.Join(dir, "etcd"))
	info, errServer := os.Stat(filepath.Join(dir, "kube-apiserver"))
	if err != nil || errServer != nil {
		return time.Time{}
	}
	return info.ModTime()
}

func startServer(t *testing.T) *server {
	t.Helper()
	bin, dir := programs(t), t.TempDir()
	etcd, peers, port := freeAddress(t), freeAddress(t), freeAddress(t)
	run(t, filepath.Join(bin, "etcd"), "--data-dir="+filepath.Join(dir, "etcd"), "--log-level=error", "--unsafe-no-fsync",
		"--listen-client-urls=http://"+etcd, "--advertise-client-urls=http://"+etcd,
		"--listen-peer-urls=http://"+peers, "--initial-advertise-peer-urls=http://"+peers, "--initial-cluster=default=http://"+peers)
	key, tokens, token := writeKey(t, dir), filepath.Join(dir, "tokens"), rand.Text()
	must(t, os.WriteFile(tokens, []byte(token+",admin,admin,system:masters\n"), 0o600))
	host, number, _ := strings.Cut(port, ":")
	run(t, filepath.Join(bin, "kube-apiserver"), "--etcd-servers=http://"+etcd, "--cert-dir="+filepath.Join(dir, "certificates"),
		"--bind-address="+host, "--secure-port="+number, "--token-auth-file="+tokens, "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none", "--v=0")
	s := &server{config: &rest.Config{
		Host: "https://" + port, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 200, Burst: 200,
	}}
	s.admin, s.dynamic = s.client(t, token), s.dynamicClient(t, token)
	eventually(t, "the API server is ready", func(ctx context.Context) error {
		return s.admin.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	return s
}

// as is the configuration of a token's owner.
func (s *server) as(token string) *rest.Config {
	config := rest.CopyConfig(s.config)
	config.BearerToken = token
	return config
}

// client is the API server as the owner of a token sees it.
func (s *server) client(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.as(token))
	must(t, err)
	return client
}

func (s *server) dynamicClient(t *testing.T, token string) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(s.as(token))
	must(t, err)
	return client
}

// run starts a process that ends with the test, and shows what it said if the test fails.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(name)+".log"))
	must(t, err)
	// Not t.Context(), which ends before clean-ups run: etcd is stopped last.
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s said at the end:\n%s", filepath.Base(name), text[max(0, len(text)-4000):])
		}
		_ = log.Close()
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

func writeKey(t *testing.T, dir string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	file := filepath.Join(dir, "service-account.key")
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	must(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	return file
}

// eventually waits until a condition has no more objection.
func eventually(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // the API server tries the end of a definition again ever later
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(fmt.Errorf("never: %s: %w", what, err))
		}
	}
}
