package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// agentUser is a service account, so that the API server limits its requests as it limits those of agents.
const agentUser = "system:serviceaccount:mesh:agent"

// server is a control plane of two processes on loopback, without nodes and controllers.
type server struct {
	dir, programs string
	args          []string
	etcd, api     *process
	token         string // of the agents
	adminToken    string
	host          string
	admin         kubernetes.Interface
}

// apiPatience bounds the API server's start, which takes long on a machine that does other things.
const apiPatience = 4 * time.Minute

// startServer starts etcd and kube-apiserver, whose programs are in a directory.
func startServer(ctx context.Context, dir, programs string) (*server, error) {
	addresses, err := freeAddresses(ctx, 3)
	if err != nil {
		return nil, err
	}
	etcd, peers, api := "http://"+addresses[0], "http://"+addresses[1], addresses[2]
	s := &server{dir: dir, programs: programs, token: rand.Text(), host: "https://" + api}
	s.etcd, err = start(dir, "etcd", nil, filepath.Join(programs, "etcd"), "--data-dir="+filepath.Join(dir, "etcd"), "--log-level=error", "--unsafe-no-fsync",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers,
		"--initial-cluster=default="+peers)
	if err != nil {
		return nil, err
	}
	s.adminToken = rand.Text()
	key, tokens, err := s.writeSecrets(s.adminToken)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	host, port, _ := strings.Cut(api, ":")
	s.args = []string{
		"--etcd-servers=" + etcd, "--cert-dir=" + filepath.Join(dir, "certificates"), "--bind-address=" + host, "--secure-port=" + port,
		"--token-auth-file=" + tokens, "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key, "--service-cluster-ip-range=10.0.0.0/24",
		"--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount", "--v=0",
	}
	if s.admin, err = kubernetes.NewForConfig(s.config(s.adminToken)); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if err := s.startAPI(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, s.allowAgents(ctx)
}

// startAPI starts kube-apiserver, also once more after it was stopped, and waits until it is ready.
func (s *server) startAPI(ctx context.Context) (err error) {
	if s.api, err = start(s.dir, "kube-apiserver", nil, filepath.Join(s.programs, "kube-apiserver"), s.args...); err != nil {
		return err
	}
	return eventually(ctx, apiPatience, "the API server is ready", func(ctx context.Context) error {
		return s.admin.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// config returns a configuration for the owner of a token, without limits of its own.
func (s *server) config(token string) *rest.Config {
	return &rest.Config{
		Host: s.host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
	}
}

func (s *server) stop() error {
	return errors.Join(s.api.stop(syscall.SIGKILL), s.etcd.stop(syscall.SIGKILL))
}

// writeSecrets writes the key for service accounts, and the tokens of the administrator and the agents.
func (s *server) writeSecrets(admin string) (keyFile, tokenFile string, err error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", "", err
	}
	keyFile, tokenFile = filepath.Join(s.dir, "service-account.key"), filepath.Join(s.dir, "tokens")
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	tokens := fmt.Sprintf("%s,admin,admin,system:masters\n%s,%s,agent,\"system:serviceaccounts,system:serviceaccounts:mesh\"\n", admin, s.token, agentUser)
	return keyFile, tokenFile, errors.Join(
		os.WriteFile(keyFile, pem.EncodeToMemory(block), 0o600), os.WriteFile(tokenFile, []byte(tokens), 0o600))
}

// allowAgents gives the agents what the chart gives them.
func (s *server) allowAgents(ctx context.Context) error {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "namespaces"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}}
	return s.allow(ctx, role)
}

// allow makes a role and gives it to the agents.
func (s *server) allow(ctx context.Context, role *rbacv1.ClusterRole) error {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: agentUser}},
	}
	_, errRole := s.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	_, errBinding := s.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	return errors.Join(errRole, errBinding)
}

// metrics reads the API server's metrics.
func (s *server) metrics(ctx context.Context) (metrics, error) {
	text, err := s.admin.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return parseMetrics(string(text)), nil
}

// freeAddresses returns addresses on loopback at which nobody listens.
func freeAddresses(ctx context.Context, n int) (free []string, err error) {
	for range n {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() //nolint:errcheck // nobody connected
		free = append(free, l.Addr().String())
	}
	return free, nil
}
