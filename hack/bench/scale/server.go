package scale

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// agentUser is a service account, so that the API server limits its requests as it limits those of agents.
const agentUser = "system:serviceaccount:mesh:agent"

// apiPatience bounds the API server's start, which takes long on a machine that does other things.
const apiPatience = 4 * time.Minute

// server is a control plane of etcd and kube-apiserver, without nodes and controllers. KUBEBUILDER_ASSETS is the directory of both programs.
type server struct {
	plane  *envtest.Environment
	api    pid
	agents *envtest.AuthenticatedUser
	admin  kubernetes.Interface
}

func startServer(ctx context.Context, dir string) (*server, error) {
	log, err := os.Create(filepath.Join(dir, "kube-apiserver.log"))
	if err != nil {
		return nil, err
	}
	s := &server{plane: &envtest.Environment{ControlPlaneStartTimeout: apiPatience}}
	api := s.plane.ControlPlane.GetAPIServer()
	api.CertDir, api.Out, api.Err = dir, log, log
	api.Configure().Set("endpoint-reconciler-type", "none")
	if _, err := s.plane.Start(); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if s.agents, err = s.plane.AddUser(envtest.User{Name: agentUser, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:mesh"}}, nil); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	config := rest.CopyConfig(s.plane.Config)
	config.ContentType, config.QPS = "application/vnd.kubernetes.protobuf", -1
	if s.admin, err = kubernetes.NewForConfig(config); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	// What the chart gives the agents.
	err = errors.Join(s.findAPI(ctx), s.allow(ctx, "agent", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "namespaces"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}))
	return s, err
}

func (s *server) stop() error { return s.plane.Stop() }

// crash kills the API server.
func (s *server) crash() error {
	err := syscall.Kill(int(s.api), syscall.SIGKILL)
	_ = s.plane.ControlPlane.APIServer.Stop() // it is gone, or going
	return err
}

// startAgain starts the API server after a crash.
func (s *server) startAgain(ctx context.Context) error {
	if err := s.plane.ControlPlane.APIServer.Start(); err != nil {
		return err
	}
	return s.findAPI(ctx)
}

// findAPI finds the API server's process, and waits until it is ready.
func (s *server) findAPI(ctx context.Context) (err error) {
	if s.api, err = find("kube-apiserver"); err != nil {
		return err
	}
	return eventually(ctx, apiPatience, "the API server is ready", func(ctx context.Context) error {
		return s.admin.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// inUse returns what the API server has in use of Go's heap after a collection, and for stacks, in KiB.
func (s *server) inUse(ctx context.Context) (float64, error) {
	profile, err := s.admin.CoreV1().RESTClient().Get().RequestURI(collected).DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	return inUse(string(profile))
}

// allow gives agents rights.
func (s *server) allow(ctx context.Context, name string, rules []rbacv1.PolicyRule) error {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: agentUser}},
	}
	_, errRole := s.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	_, errBinding := s.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	return errors.Join(errRole, errBinding)
}
